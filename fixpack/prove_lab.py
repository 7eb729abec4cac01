"""The prover's outside world: the source cache, the engine and the harness of this checkout."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType

from fixpack import cache, sources
from fixpack.engine import apply_selection
from fixpack.errors import Problem, SourceError, UsageError
from fixpack.model import Profile, Registry, Release
from fixpack.prove import Lab
from fixpack.registry import unknown
from fixpack.target import source_target

_HARNESS = os.path.join("tests", "harness", "env.py")
_NEEDED = ("pytest", "torch", "transformers", "numpy")


def missing_modules() -> list[str]:
    """What the harness needs and this interpreter lacks."""
    return [name for name in _NEEDED if importlib.util.find_spec(name) is None]


def real_lab(registry: Registry) -> Lab:
    """The lab of a checkout.

    :raises UsageError: without the checkout's harness or the packages that it needs.
    """
    harness = os.path.join(registry.root, _HARNESS)
    if not os.path.isfile(harness):
        raise UsageError(
            Problem(
                "harness_missing",
                "proofs need a checkout of fixpack: an installed package holds no tests",
                file=harness,
                hint="clone the repository and run `fixpack prove` there",
            )
        )
    absent = missing_modules()
    if absent:
        raise UsageError(
            Problem(
                "harness_missing",
                f"the proofs need {', '.join(absent)}, which this Python does not have",
                hint="`python3 bootstrap.py test --collect-only` makes .venv, which has the pinned versions",
            )
        )
    module = _load(harness)

    def env(trees: Mapping[str, str]) -> dict[str, str]:
        try:
            made: dict[str, str] = module.proof_env(trees.get("vllm-gaudi", ""), trees["vllm"], cache.cache_dir())
        except module.HarnessError as error:
            raise UsageError(Problem("harness_missing", str(error), file=harness)) from error
        return made

    def apply(releases: Sequence[Release], fixes: Sequence[str], trees: Mapping[str, str]) -> None:
        names = [(release.distribution, release.package) for release in releases]
        apply_selection(registry, releases, fixes, source_target(dict(trees), names))

    def tree(release: Release) -> str:
        if not sources.have(release):
            return ""
        problems = sources.verify(release)
        if problems:
            raise SourceError(*problems)
        return sources.tree(release)

    return Lab(os.path.join(cache.cache_dir(), "prove"), tree, sources.fetch_command, apply, env)


def select(
    registry: Registry, fixes: Sequence[str], profile: Profile | None, release: str
) -> list[tuple[Profile, tuple[str, ...]]]:
    """The profiles to prove, and the fixes in each.

    Without ``profile``: those that pin ``release``; without either: all that are not experimental.

    :raises UsageError: if a name is unknown, or nothing is left to prove.
    """
    for fix in fixes:
        if fix not in registry.fixes:
            raise UsageError(unknown("fix", fix, registry.fixes))
    if release and release not in registry.releases:
        raise UsageError(unknown("release", release, registry.releases))
    profiles: Iterable[Profile] = [profile] if profile else registry.profiles.values()
    if release:
        profiles = [found for found in profiles if release in {r.ref for r in registry.profile_releases(found)}]
    elif not profile:
        profiles = [found for found in profiles if not found.experimental]
    chosen = []
    for found in profiles:
        known = (*found.fixes, *found.opt_in, *registry.superseded(found))
        wanted = tuple(fix for fix in known if not fixes or fix in fixes)
        if wanted:
            chosen.append((found, wanted))
    left = [fix for fix in fixes if not any(fix in wanted for _, wanted in chosen)]
    if left or not chosen:
        what = f"no profile that was asked for holds {', '.join(left)}" if left else "there is nothing to prove"
        raise UsageError(Problem("nothing_selected", what, hint="fixpack list shows profiles and their fixes"))
    return chosen


def _load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("fixpack_harness_env", path)
    if spec is None or spec.loader is None:
        raise UsageError(Problem("harness_missing", "it cannot be imported", file=path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
