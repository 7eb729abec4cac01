#!/usr/bin/env python3
"""Fixpack against git apply, git am, quilt, GNU patch and patch-package: the same edits, in one run.

    python benchmarks/appliers.py [--profile gaudi2-v0.26.0] [--rounds 10] [--json FILE]

Each tool gets a fresh copy of the files that the profile touches, in an order shuffled per round;
making copies, repositories and series is not timed.  Every result is compared byte for byte with the
expected tree before its time counts.  Ratios are medians over medians.  A tool that is not installed
is listed as absent.  patch-package is looked for in ``--npm DIR`` (a folder in which
``npm install patch-package`` was run).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fixpack import registry, sources  # noqa: E402
from fixpack.compose import compose, touched  # noqa: E402
from fixpack.locksmith import read_base  # noqa: E402

#: what the design allows: (our row, other row, factor)
BUDGETS = (
    ("fixpack confirm", "python imports", 1.5),
    ("fixpack apply", "quilt push -a", 0.6),
    ("fixpack apply", "git am", 1.0),
    ("fixpack apply", "patch-package", 0.8),
)

ENV = {
    **{key: value for key, value in os.environ.items() if not key.startswith(("GIT_", "QUILT_", "PYTHON"))},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "bench",
    "GIT_AUTHOR_EMAIL": "bench@example.invalid",
    "GIT_COMMITTER_NAME": "bench",
    "GIT_COMMITTER_EMAIL": "bench@example.invalid",
    "QUILT_PC": ".pc",
    "LC_ALL": "C",
}

Files = dict[str, bytes]


def series(root: Path, profile_name: str) -> tuple[Files, list[tuple[str, Files]]]:
    """The pinned files of a profile, and after each fix what the files are then."""
    loaded = registry.load(str(root))
    profile = registry.find_profile(loaded, profile_name)
    stock: Files = {}
    states: list[tuple[str, Files]] = []
    for count in range(1, len(profile.fixes) + 1):
        fixes = [loaded.fixes[name] for name in profile.fixes[:count]]
        state: Files = {}
        for release in loaded.profile_releases(profile):
            # Files that only opt-in fixes touch lie in every install, and a confirm looks at them too.
            paths = touched(release, [loaded.fixes[name] for name in (*profile.fixes, *profile.opt_in)])
            if not paths:
                continue
            base = read_base(release, paths, sources.tree(release))
            stock.update({path: data for path, data in base.items() if data is not None})
            state.update({path: data for path, data in base.items() if data is not None})
            state.update(compose(base, release, fixes))
        states.append((profile.fixes[count - 1], state))
    return stock, states


def write(folder: Path, files: Files) -> None:
    """Lay files out below a folder."""
    for path, data in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def run(command: list[str], folder: Path, **more: str) -> None:
    """A child process that must succeed."""
    subprocess.run(command, cwd=folder, env={**ENV, **more}, check=True, capture_output=True)


def make_patches(stock: Files, states: list[tuple[str, Files]], folder: Path) -> tuple[list[Path], list[Path]]:
    """A git diff and a mail per fix."""
    repo = folder / "series"
    write(repo, stock)
    run(["git", "init", "-q", "."], repo)
    run(["git", "add", "-A"], repo)
    run(["git", "commit", "-qm", "stock"], repo)
    for name, files in states:
        write(repo, files)
        run(["git", "add", "-A"], repo)
        run(["git", "commit", "-qm", name], repo)
    run(["git", "format-patch", "-q", "--root", "-o", str(folder / "mails"), f"-{len(states)}"], repo)
    mails = sorted((folder / "mails").iterdir())
    diffs = []
    (folder / "diffs").mkdir()
    for index in range(len(states)):
        back = len(states) - index
        done = subprocess.run(
            ["git", "diff", f"HEAD~{back}", f"HEAD~{back - 1}"], cwd=repo, env=ENV, check=True, capture_output=True
        )
        path = folder / "diffs" / f"{index + 1:02}.patch"
        path.write_bytes(done.stdout)
        diffs.append(path)
    whole = subprocess.run(
        ["git", "diff", f"HEAD~{len(states)}", "HEAD"], cwd=repo, env=ENV, check=True, capture_output=True
    )
    (folder / "whole.patch").write_bytes(whole.stdout)
    return diffs, mails


class Tool:
    """One row: how to prepare a folder (not timed), what to run in it (timed), where the files are then."""

    def __init__(self, name: str, command: Callable[[Path], list[list[str]]], prepare: Callable[[Path], None]) -> None:
        self.name, self.command, self.prepare = name, command, prepare
        self.inside = ""
        self.times: list[float] = []

    def once(self, folder: Path, expected: Files | None) -> None:
        """Prepare, time, compare, clean up."""
        folder.mkdir()
        self.prepare(folder)
        commands = self.command(folder)
        started = time.perf_counter()
        for command in commands:
            run(command, folder)
        self.times.append(time.perf_counter() - started)
        for path, data in (expected or {}).items():
            if (folder / self.inside / path).read_bytes() != data:
                raise SystemExit(f"{self.name}: {path} is not what was expected")
        shutil.rmtree(folder)


def tools(
    ours: list[str], stock: Files, fixed: Files, diffs: list[Path], mails: list[Path], npm: Path | None
) -> list[Tool]:
    """Every row that can be run here."""
    python = sys.executable
    apply = [python, str(ROOT / "apply_all.py"), *ours, "--site"]

    def lay(folder: Path) -> None:
        write(folder, stock)

    def lay_fixed(folder: Path) -> None:
        write(folder, fixed)

    def lay_repo(folder: Path) -> None:
        lay(folder)
        run(["git", "init", "-q", "."], folder)
        run(["git", "add", "-A"], folder)
        run(["git", "commit", "-qm", "stock"], folder)

    def lay_quilt(folder: Path) -> None:
        lay(folder)
        (folder / "patches").mkdir()
        for diff in diffs:
            shutil.copy(diff, folder / "patches")
        (folder / "patches" / "series").write_text("".join(f"{diff.name} -p1\n" for diff in diffs))

    rows = [
        Tool("python imports", lambda _: [[python, "-c", "import argparse, json, hashlib, yaml"]], lambda _: None),
        Tool("fixpack confirm", lambda folder: [[*apply, str(folder)]], lay_fixed),
        Tool("fixpack apply", lambda folder: [[*apply, str(folder)]], lay),
        Tool("git apply, one call", lambda _: [["git", "apply", *map(str, diffs)]], lay),
        Tool("git apply, a call per fix", lambda _: [["git", "apply", str(diff)] for diff in diffs], lay),
        Tool("git am", lambda _: [["git", "am", "-q", *map(str, mails)]], lay_repo),
    ]
    if shutil.which("patch"):
        rows.append(
            Tool("GNU patch", lambda _: [["patch", "-s", "-p1", "--fuzz=0", "-i", str(diff)] for diff in diffs], lay)
        )
    if shutil.which("quilt"):
        rows.append(Tool("quilt push -a", lambda _: [["quilt", "push", "-a", "-q", "--fuzz=0"]], lay_quilt))
    if npm and (npm / "node_modules" / "patch-package" / "index.js").exists():
        row = Tool(
            "patch-package",
            lambda _: [["node", str(npm / "node_modules" / "patch-package" / "index.js")]],
            lambda folder: lay_npm(folder, stock, diffs),
        )
        row.inside = "node_modules/upstream"
        rows.append(row)
    return rows


def lay_npm(folder: Path, stock: Files, diffs: list[Path]) -> None:
    """A project that depends on the files as if they were an npm package, with one patch for it."""
    inside = "node_modules/upstream"
    write(folder / inside, stock)
    package = json.dumps({"name": "upstream", "version": "1.0.0"})
    (folder / inside / "package.json").write_text(package)
    (folder / "package.json").write_text(json.dumps({"name": "bench", "dependencies": {"upstream": "1.0.0"}}))
    (folder / "package-lock.json").write_text(
        json.dumps({"name": "bench", "lockfileVersion": 3, "packages": {inside: {"version": "1.0.0"}}})
    )
    (folder / "patches").mkdir()
    text = (diffs[0].parent.parent / "whole.patch").read_text()
    for side in ("a", "b"):
        text = text.replace(f" {side}/", f" {side}/{inside}/")
    (folder / "patches" / "upstream+1.0.0.patch").write_text(text)


def main() -> int:
    """Run all rows, print the table; exit 1 if a budget is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="gaudi2-v0.26.0")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--registry", type=Path, default=ROOT)
    parser.add_argument("--npm", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    stock, states = series(args.registry, args.profile)
    fixed = states[-1][1]
    with tempfile.TemporaryDirectory(prefix="fixpack-bench-") as temporary:
        folder = Path(temporary)
        diffs, mails = make_patches(stock, states, folder)
        ours = ["--profile", args.profile, "--registry", str(args.registry)]
        rows = tools(ours, stock, fixed, diffs, mails, args.npm)
        for number in range(args.rounds + 1):  # the first round warms caches and does not count
            for tool in random.sample(rows, len(rows)):
                tool.once(folder / "run", None if tool.name == "python imports" else fixed)
            if number == 0:
                for tool in rows:
                    tool.times.clear()
    medians = {tool.name: statistics.median(tool.times) for tool in rows}
    print(f"{args.profile}: {len(states)} fixes, {len(fixed)} files, {args.rounds} rounds, median / best in ms")
    for tool in rows:
        print(f"  {tool.name:<26} {medians[tool.name] * 1e3:8.1f} {min(tool.times) * 1e3:8.1f}")
    missed = 0
    for ours, theirs, factor in BUDGETS:
        if theirs not in medians:
            print(f"  {ours} / {theirs}: absent here")
            continue
        ratio = medians[ours] / medians[theirs]
        missed += ratio > factor
        print(f"  {ours} / {theirs}: {ratio:.2f} (budget {factor}){'' if ratio <= factor else '  MISSED'}")
    if args.json:
        record = {"profile": args.profile, "rounds": args.rounds, "seconds": {row.name: row.times for row in rows}}
        args.json.write_text(json.dumps(record, indent=1))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
