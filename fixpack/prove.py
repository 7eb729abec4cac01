"""Prove fixes: red on stock with the declared failure, green alone, green together.

Planning and judging are plain functions over records; ``prove_profile`` does what lies between.
What the outside world supplies (trees, engine, harness) comes in as a ``Lab``.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

from fixpack.errors import FixpackError, Problem, SourceError
from fixpack.model import Fix, Profile, Registry, Release
from fixpack.proof_plan import STOCK, Run, plan
from fixpack.proof_run import Children, TestOutcome, Trouble, run_pytest
from fixpack.proof_trees import Digester, clone, lend_bytecode

_LOCK = "lock"


class Lab(NamedTuple):
    """What a proof needs from outside."""

    scratch: str  # where throw-away trees are made; best on the cached trees' file system
    tree: Callable[[Release], str]  # the cached tree, "" if it is not there
    fetch: Callable[[Release], str]  # the command that fetches it
    apply: Callable[[Sequence[Release], Sequence[str], Mapping[str, str]], None]  # releases, fixes, tree by dist.
    env: Callable[[Mapping[str, str]], dict[str, str]]  # tree by distribution -> environment of the interpreter


class RunResult(NamedTuple):
    """What a run gave."""

    run: Run
    trees: dict[str, str]  # distribution@release -> sha256 of the tree that the proofs saw
    tests: tuple[TestOutcome, ...]
    troubles: tuple[Trouble, ...]
    duration: float


class Verdict(NamedTuple):
    """What is known of one fix in one profile."""

    fix: str
    status: str  # proven, superseded (upstream has it, and its stock is green), failed, skipped
    reasons: tuple[str, ...]
    red: tuple[int, int]  # declared tests that failed as declared, declared tests
    guards: tuple[int, int]  # undeclared tests that passed on stock, undeclared tests
    alone: tuple[int, int]  # passed, ran
    together: tuple[int, int]  # passed, ran, over all runs with everything applied
    test_seconds: float  # of its tests in all runs; runs go side by side, so more than the clock shows


class ProfileResult(NamedTuple):
    """Everything about one profile."""

    profile: Profile
    verdicts: tuple[Verdict, ...]
    runs: tuple[RunResult, ...]
    missing: tuple[str, ...]  # commands that fetch what is missing


# -- running ----------------------------------------------------------------------------------------------------------


def prove_profile(
    registry: Registry,
    profile: Profile,
    selected: Sequence[str],
    lab: Lab,
    jobs: int = 1,
    timeout: float = 1800,
    done: Callable[[RunResult], None] = lambda result: None,
) -> ProfileResult:
    """Prove the ``selected`` fixes of a profile.

    :param jobs: interpreters at a time.
    :param timeout: seconds that one interpreter may take.
    :param done: called after each run, from any thread.
    :raises FixpackError: if the harness cannot run, or a cached tree is not what it was.
    """
    releases = registry.profile_releases(profile)
    trees = {release.distribution: lab.tree(release) for release in releases}
    missing = tuple(lab.fetch(release) for release in releases if not trees[release.distribution])
    if missing:
        reason = f"source missing: {' && '.join(missing)}"
        skipped = (Verdict(fix, "skipped", (reason,), (0, 0), (0, 0), (0, 0), (0, 0), 0.0) for fix in selected)
        return ProfileResult(profile, tuple(skipped), (), missing)
    digester = Digester()
    before = {name: digester.tree(tree, fresh=True) for name, tree in trees.items()}
    stock, *others = plan(registry, profile, selected)
    children = Children()

    def execute(run: Run) -> RunResult:
        folder = os.path.join(scratch, _safe(run.name))
        copies = {name: os.path.join(folder, name) for name in trees}
        for name, tree in trees.items():
            clone(tree, copies[name])
            if run is not stock:  # stock runs first; its bytecode saves each other run seconds
                lend_bytecode(os.path.join(scratch, STOCK, name), copies[name])
        result = _execute(registry, releases, run, copies, lab, folder, timeout, digester, children)
        done(result)
        return result

    with _scratch(lab.scratch) as scratch, ThreadPoolExecutor(max(1, jobs)) as pool:
        try:
            results = [execute(stock), *pool.map(execute, others)]
        except BaseException:
            children.stop()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    for release in releases:
        if digester.tree(trees[release.distribution], fresh=True) != before[release.distribution]:
            raise SourceError(
                Problem(
                    "source_changed",
                    f"the cached tree of {release.ref} changed during the proofs",
                    file=trees[release.distribution],
                    hint=f"remove that folder, then {lab.fetch(release)}",
                )
            )
    superseded = registry.superseded(profile)
    verdicts = tuple(
        judge(registry, registry.fixes[fix], results, registry.fixes[fix].green_on(releases), fix in superseded)
        for fix in selected
    )
    return ProfileResult(profile, verdicts, tuple(results), ())


def _execute(
    registry: Registry,
    releases: Sequence[Release],
    run: Run,
    trees: Mapping[str, str],
    lab: Lab,
    folder: str,
    timeout: float,
    digester: Digester,
    children: Children,
) -> RunResult:
    """Apply and run; ``trees`` are this run's own copies, ``folder`` its scratch folder."""
    if run.fixes:
        try:
            lab.apply(releases, run.fixes, trees)
        except FixpackError as error:
            told = (Trouble("", f"cannot be applied: {problem.message}") for problem in error.problems)
            return RunResult(run, {}, (), tuple(told), 0.0)
    digests = {release.ref: digester.tree(trees[release.distribution]) for release in releases}
    files = list(dict.fromkeys(os.path.join(registry.root, registry.fixes[fix].proof.test) for fix in run.proofs))
    report = run_pytest(files, lab.env(trees), registry.root, folder, timeout, children)
    troubles = list(report.troubles)
    for release in releases:
        if digester.tree(trees[release.distribution], fresh=True) != digests[release.ref]:
            troubles.append(Trouble("", f"the proofs wrote into the tree of {release.ref}"))
    return RunResult(run, digests, report.tests, tuple(troubles), report.duration)


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "_", name)


@contextmanager
def _scratch(parent: str) -> Iterator[str]:
    """A scratch folder on the cached trees' file system, so that hard links work; else in the system's own place.

    What killed provers left in ``parent`` goes first: a living one holds the lock in its folder.
    """
    try:
        os.makedirs(parent, exist_ok=True)
        _remove_dead(parent)
        folder = tempfile.mkdtemp(prefix="prove-", dir=parent)
    except OSError as error:  # a cache that only others may write
        folder = tempfile.mkdtemp(prefix="fixpack-prove-")
        print(f"no scratch folder in {parent} ({error.strerror}); using {folder}, with copies", file=sys.stderr)
    making = os.path.join(folder, f"{_LOCK}.new")
    with open(making, "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.rename(making, os.path.join(folder, _LOCK))  # under its name it is never seen unlocked
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_dead(parent: str) -> None:
    """Remove what killed provers left; anything else in the folder is not ours to touch."""
    with os.scandir(parent) as entries:
        left = [each.path for each in entries if each.name.startswith("prove-") and each.is_dir(follow_symlinks=False)]
    for folder in left:
        try:
            with open(os.path.join(folder, _LOCK), "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # alive, just being made, or another user's


# -- judging ----------------------------------------------------------------------------------------------------------


def judge(
    registry: Registry,
    fix: Fix,
    results: Sequence[RunResult],
    green: Collection[str] = (),
    superseded: bool = False,
) -> Verdict:
    """Whether the runs prove the fix, and every reason why not.

    :param green: declared tests that must pass on stock, because upstream has what they ask for.
    :param superseded: whether the profile does without the fix, so that no run has it applied.
    """
    path = os.path.realpath(os.path.join(registry.root, fix.proof.test))
    reasons: list[str] = []
    red = guards = alone = together = (0, 0)
    seconds = 0.0
    for result in (result for result in results if fix.id in result.run.proofs):
        name = result.run.name
        tests = [test for test in result.tests if test.path == path]
        passed = sum(test.outcome == "passed" for test in tests)
        seconds += sum(test.duration for test in tests)
        troubles = [trouble.text for trouble in result.troubles if trouble.path in ("", path)]
        reasons += [f"{name}: {text}" for text in troubles]
        if not tests and not troubles:
            reasons.append(f"{name}: no test ran")
        if name == STOCK:
            declared = [test for test in tests if test.function in fix.proof.stock and test.function not in green]
            others = [test for test in tests if test not in declared]
            wrong = [_not_red(test, fix.proof.stock[test.function]) for test in declared]
            red = (wrong.count(""), len(declared))
            guards = (passed - sum(test.outcome == "passed" for test in declared), len(others))
            reasons += [reason for reason in wrong if reason]
            for test in others:
                if test.outcome != "passed":
                    who = "upstream is said to have it, but" if test.function in green else "the guard"
                    reasons.append(f"stock: {who} {_not_green(test)}")
            for function in fix.proof.stock.keys() - {test.function for test in tests}:
                reasons.append(f"stock: {function} is declared, but there is no such test")
        else:
            if superseded:  # what upstream lacks is nobody's here
                tests = [test for test in tests if test.function in green or test.function not in fix.proof.stock]
                passed = sum(test.outcome == "passed" for test in tests)
            reasons += [f"{name}: {_not_green(test)}" for test in tests if test.outcome != "passed"]
            if name.startswith("alone:"):
                alone = (passed, len(tests))
            else:
                together = (together[0] + passed, together[1] + len(tests))
    status = "failed" if reasons else "superseded" if superseded else "proven"
    return Verdict(fix.id, status, tuple(reasons), red, guards, alone, together, round(seconds, 2))


def _not_red(test: TestOutcome, declared: str) -> str:
    """Why a declared test is not red in the declared way; "" if it is."""
    name = test.nodeid.rpartition("/")[2]
    if test.outcome == "passed":
        return f"stock: {name} is green without the fix"
    if test.outcome != "failed":
        return f"stock: {name} must fail, but was {test.outcome}{_because(test)}"
    if re.search(declared, ""):
        return f"stock: {name} declares {declared!r}, which any failure matches"
    if not re.search(declared, test.text):
        return f"stock: {name} fails for another reason than {declared!r}{_because(test)}"
    return ""


def _not_green(test: TestOutcome) -> str:
    return f"{test.nodeid.rpartition('/')[2]} {test.outcome}{_because(test)}"


def _because(test: TestOutcome) -> str:
    text = test.text.strip()
    return f": {text.splitlines()[0][:300]}" if text else ""
