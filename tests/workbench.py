"""For tests that run a harness script in fresh interpreters on a profile's real trees, stock or with fixes applied."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fixpack import compose, crosscheck, prove_lab, registry
from fixpack.model import Profile
from fixpack.proof_trees import clone
from fixpack.prove import Lab

REPO = Path(__file__).resolve().parent.parent
REGISTRY = registry.load(str(REPO))

Trees = dict[str, str]  # distribution -> folder


class Workbench:
    """A profile's stock trees in the cache, and throw-away copies with fixes, made by the engine."""

    def __init__(self, lab: Lab, profile: Profile, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self.releases = REGISTRY.profile_releases(profile)
        self.stock: Trees = {release.distribution: lab.tree(release) for release in self.releases}
        self.copies = 0

    @contextmanager
    def fixed(self, fixes: Sequence[str]) -> Iterator[Trees]:
        """The trees with these fixes and all that they require; the copies and their bytecode go afterwards."""
        pinned = [release.distribution for release in self.releases]
        names = crosscheck.closure(REGISTRY, tuple(fixes), pinned)
        copies = self.folder / str(self.copies)
        self.copies += 1
        trees = dict(self.stock)
        for release in self.releases:
            if compose.touched(release, [REGISTRY.fixes[name] for name in names]):
                trees[release.distribution] = str(copies / release.distribution)
                clone(self.stock[release.distribution], trees[release.distribution])
        if names:
            self.lab.apply(self.releases, names, trees)
        prefix = self.lab.env(trees)["PYTHONPYCACHEPREFIX"]
        try:
            yield trees
        finally:  # what belongs to the cached trees stays for the next run
            shutil.rmtree(copies, ignore_errors=True)
            shutil.rmtree(os.path.join(prefix, str(copies).lstrip(os.sep)), ignore_errors=True)

    def run(self, script: str, arguments: Sequence[str], trees: Trees, more: Mapping[str, str] | None = None) -> Any:
        """What a script of tests/harness prints as JSON, in a fresh interpreter on these trees."""
        done = subprocess.run(
            [sys.executable, str(REPO / "tests/harness" / script), *arguments],
            env={**self.lab.env(trees), **(more or {})},
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-6000:]
        return json.loads(done.stdout)


@contextmanager
def workbench(
    request: pytest.FixtureRequest, factory: pytest.TempPathFactory, profile: Profile
) -> Iterator[Workbench]:
    """A workbench on the machine's own source cache; skips with the command to type where something is missing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIXPACK_SOURCES", str(request.getfixturevalue("real_cache")))
        absent = prove_lab.missing_modules()
        if absent:
            pytest.skip(f"needs {', '.join(absent)}: python3 bootstrap.py test installs the pinned versions")
        lab = prove_lab.real_lab(REGISTRY)
        missing = [lab.fetch(release) for release in REGISTRY.profile_releases(profile) if not lab.tree(release)]
        if missing:
            pytest.skip(f"source missing: {' && '.join(missing)}")
        yield Workbench(lab, profile, factory.mktemp("workbench"))
