"""The whole system under random load: stock is wrong in a counted share of the runs, fixed never, a subset never worse.

Runs tests/harness/system.py in fresh interpreters on the real sources, one per tree; skipped with the command that
fetches them.  By default few workloads, in a few minutes; FIXPACK_SYSTEM_SEEDS=200 FIXPACK_SYSTEM_SUBSETS=10 is the
long run.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from workbench import REGISTRY, Workbench, workbench

from fixpack import crosscheck

PROFILE = REGISTRY.profiles["gaudi2-v0.26.0"]
EVERYTHING = (*PROFILE.fixes, "seeded-cache-reset")  # the loads reset the prefix cache, and have seeds
SEEDS = int(os.environ.get("FIXPACK_SYSTEM_SEEDS", "8"))
SUBSETS = int(os.environ.get("FIXPACK_SYSTEM_SUBSETS", "1"))
MODES = [f"{kind} {load}" for kind in ("sync", "async") for load in ("reads", "parameters", "structured")]
CASES = [
    "seed, prompt in chunks, async",
    "seed, prompt in chunks beside structured output, sync",
    "seed, reset of the prefix cache, async",
    "seed, prompt in one piece, async",
    "seed, prompt in chunks, sync",
    "seed, prompt in one piece beside structured output, sync",
]

Found = dict[str, dict[str, Any]]


class System:
    """Runs the workloads on one tree after another; what was found on a tree is kept."""

    def __init__(self, bench: Workbench) -> None:
        self.bench = bench
        self.found: dict[tuple[str, ...], Found] = {}

    def run(self, fixes: Sequence[str]) -> Found:
        """What the workloads found with these fixes (and those that they require) applied."""
        names = crosscheck.closure(REGISTRY, tuple(fixes), PROFILE.releases)
        if names not in self.found:
            with self.bench.fixed(names) as trees:
                found: Found = self.bench.run("system.py", [str(SEEDS)], trees)
            assert list(found) == [*MODES, "cases"]
            self.found[names] = found
        return self.found[names]


@pytest.fixture(scope="module")
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with workbench(request, tmp_path_factory, PROFILE) as bench:
        yield System(bench)


def wrong(found: Found, mode: str) -> dict[str, list[str]]:
    """The workloads of that mode that went wrong, by number, with the first findings."""
    return {seed: result["wrong"][:3] for seed, result in found[mode].items() if result["wrong"]}


def told(name: str, found: Found) -> str:
    counts = ", ".join(f"{mode} {len(wrong(found, mode))}" for mode in MODES)
    return f"wrong of {SEEDS} runs with {name}: {counts}"


def subsets() -> list[tuple[str, ...]]:
    """Some halves of the fixes, each with what it requires; the same ones every time."""
    draw = random.Random(1)
    return [tuple(draw.sample(EVERYTHING, len(EVERYTHING) // 2)) for _ in range(SUBSETS)]


def test_stock_is_wrong(system: System, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise the workloads would show nothing; all of them did run, with preemptions among them."""
    found = system.run(())
    with capsys.disabled():
        print(f"\n{told('stock', found)}")
    for mode in MODES:
        assert len(found[mode]) == SEEDS
        if "reads" not in mode or SEEDS >= 8:
            assert wrong(found, mode), f"{mode}: stock is right"
    for kind in ("sync", "async"):
        assert sum(result["preempted"] for mode in MODES if mode.startswith(kind) for result in found[mode].values())


@pytest.mark.parametrize("mode", MODES)
def test_fixed_is_right(system: System, mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = system.run(EVERYTHING)
    if mode == MODES[0]:
        with capsys.disabled():
            print(f"\n{told('everything', found)}")
    assert not wrong(found, mode)


@pytest.mark.parametrize("case", CASES)
def test_small_cases(system: System, case: str) -> None:
    """Workloads that are too small to be drawn often: a seed beside a prompt in chunks or in one piece."""
    assert not system.run(EVERYTHING)["cases"][case]["wrong"]


@pytest.mark.parametrize("fixes", subsets(), ids=lambda fixes: f"{len(fixes)} of {len(EVERYTHING)}")
def test_a_subset_is_never_worse(
    system: System, fixes: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """A workload that is right on stock is right with any fixes whose requirements are met."""
    stock, found = system.run(()), system.run(fixes)
    with capsys.disabled():
        print(f"\n{told(', '.join(crosscheck.closure(REGISTRY, fixes, PROFILE.releases)), found)}")
    for mode in MODES:
        worse = {seed: text for seed, text in wrong(found, mode).items() if seed not in wrong(stock, mode)}
        assert not worse, mode
