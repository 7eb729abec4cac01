"""The same requests through the whole stack, on stock and on fixed code: equal without a trigger, right with one.

Runs tests/harness/e2e.py in fresh interpreters on the real sources; skipped with the command that fetches them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from workbench import REGISTRY, workbench

PROFILES = [
    name
    for name, profile in REGISTRY.profiles.items()
    if "vllm-gaudi" in profile.releases and not profile.experimental
]
KINDS = ("sync", "async")


class Outcome:
    """What e2e.py printed for a profile, on stock and with all default fixes."""

    def __init__(self, stock: dict[str, Any], fixed: dict[str, Any]) -> None:
        self.stock = stock
        self.fixed = fixed


@pytest.fixture(scope="module", params=PROFILES)
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """Both runs of a profile."""
    profile = REGISTRY.profiles[request.param]
    with workbench(request, tmp_path_factory, profile) as bench, bench.fixed(profile.fixes) as fixed:
        yield Outcome(bench.run("e2e.py", [], bench.stock), bench.run("e2e.py", [], fixed))


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_trigger_nothing_changes(outcome: Outcome, kind: str) -> None:
    """Greedy, seeded, penalised and cached requests, prompts in chunks: the same tokens."""
    stock, fixed = outcome.stock[kind]["plain"], outcome.fixed[kind]["plain"]
    # A seed in a batch that is padded to its bucket is a trigger of seeded-sampling-padding, whose proof covers it.
    del stock["together"]["seeded"], fixed["together"]["seeded"]
    assert fixed == stock
    for name in ("penalised", "greedy, in chunks", "cached prefix"):
        assert fixed["together"][name] == fixed["alone"][name], name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("case", "hit", "others"),
    [
        ("shared prefix", ["Reader"], ["Writer"]),
        ("temperatures", ["P0", "P1"], []),
        ("penalties", ["P0", "P1"], []),
        ("allowed tokens", ["P1"], ["P0"]),
    ],
)
def test_company_changes_nothing(outcome: Outcome, kind: str, case: str, hit: list[str], others: list[str]) -> None:
    """With a trigger, a fixed engine gives what each request gets alone; stock does not."""
    stock, fixed = outcome.stock[kind][case], outcome.fixed[kind][case]
    # A seed and a prompt in chunks are a trigger of seeded-partial-prompts, alone too; its proof covers that.
    chunked = {"P1"} if (kind, case) == ("async", "temperatures") else set()
    for name in stock["alone"].keys() - chunked:
        assert fixed["alone"][name] == stock["alone"][name], name
    for name in (*hit, *others):
        assert fixed["together"][name] == fixed["alone"][name], name
    for name in hit:
        assert stock["together"][name] != stock["alone"][name], f"{name}: stock is right, so this is no trigger"


@pytest.mark.parametrize("kind", KINDS)
def test_logit_bias(outcome: Outcome, kind: str) -> None:
    """Stock ignores it; fixed obeys, for the right requests only."""
    stock, fixed = outcome.stock[kind]["logit bias"], outcome.fixed[kind]["logit bias"]
    assert fixed["together"] == fixed["alone"] == {"A": stock["alone"]["A"], "B": [7] * 6, "C": [9] * 6}
    assert 7 not in stock["alone"]["B"]
    assert 9 not in stock["alone"]["C"]


@pytest.mark.parametrize("kind", KINDS)
def test_bad_words(outcome: Outcome, kind: str) -> None:
    """Stock's engine dies of a second request with bad words; fixed leaves them out, and only there."""
    stock, fixed = outcome.stock[kind]["bad words"], outcome.fixed[kind]["bad words"]
    assert stock["error"] == "IndexError: index 1 is out of bounds for dimension 0 with size 1"
    assert fixed["together"] == fixed["alone"] == stock["alone"]
    assert not [token for token in fixed["together"]["B"] if token in range(3, 500, 2)]
