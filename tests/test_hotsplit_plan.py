"""The placement: what is hot, by definition and by properties; coverage, distance, blends, plans as files."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hotsplit_kit import exact_place, rows
from hypothesis import given, settings
from hypothesis import strategies as st

from fixpack.hotsplit.payload import counts, plan

GIB = 1 << 30
CELL = 18 << 20


def shares_of(table: dict[int, list[int]]) -> dict[int, list[float]]:
    return counts.shares(counts.Counts("x", "B", {"mixed": table}, {}, {}), {"decode": 1.0})


#: small numbers on purpose: many ties, within layers and between them
tables = st.integers(1, 6).flatmap(
    lambda experts: st.dictionaries(
        st.integers(0, 99),
        st.lists(st.integers(0, 5), min_size=experts, max_size=experts).filter(any),
        min_size=1,
        max_size=6,
    )
)


@given(tables, st.integers(0, 40))
def test_the_placement_is_the_definition_s(table: dict[int, list[int]], cells: int) -> None:
    assert plan.place(shares_of(table), cells) == exact_place(table, cells)


@given(tables, st.integers(0, 40))
def test_hot_and_cold_are_a_partition_within_the_budget(table: dict[int, list[int]], cells: int) -> None:
    experts = len(next(iter(table.values())))
    hot = plan.place(shares_of(table), cells)
    cold = plan.cold_of(hot, experts)
    assert list(hot) == list(cold) == sorted(table)
    for layer in table:
        assert sorted(hot[layer] + cold[layer]) == list(range(experts))
        assert hot[layer] == sorted(hot[layer])
    assert sum(map(len, hot.values())) == min(cells, experts * len(table))


@given(tables, st.integers(0, 40), st.integers(0, 10))
def test_more_budget_takes_nothing_away(table: dict[int, list[int]], cells: int, more: int) -> None:
    scores = shares_of(table)
    small, large = plan.place(scores, cells), plan.place(scores, cells + more)
    assert all(set(small[layer]) <= set(large[layer]) for layer in table)
    assert plan.coverage(small, table) <= plan.coverage(large, table)


@given(tables, st.integers(0, 40), st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_matter(table: dict[int, list[int]], cells: int, random: Random) -> None:
    mixed = list(table.items())
    random.shuffle(mixed)
    document = {str(layer): {"counts": row} for layer, row in mixed}
    read = counts.parse(json.loads(json.dumps(document)), "x")
    again = plan.place(counts.shares(read, {"decode": 1.0}), cells)
    first = plan.place(shares_of(table), cells)
    assert json.dumps(again) == json.dumps(first)


@given(tables, st.integers(0, 40))
def test_no_other_choice_of_as_many_cells_has_a_larger_share(table: dict[int, list[int]], cells: int) -> None:
    scores = shares_of(table)
    hot = plan.place(scores, cells)
    inside = [scores[layer][expert] for layer, chosen in hot.items() for expert in chosen]
    cold = plan.cold_of(hot, len(next(iter(table.values()))))
    outside = [scores[layer][expert] for layer, chosen in cold.items() for expert in chosen]
    assert min(inside, default=1) >= max(outside, default=0)


@given(st.integers(0, 1000 * GIB), st.integers(1, GIB))
def test_cells_never_exceed_the_budget(budget: int, cell: int) -> None:
    cells = plan.cells_in(budget, cell)
    assert cells * cell <= budget < (cells + 1) * cell


@pytest.mark.parametrize(("budget", "cell"), [(-1, CELL), (GIB, 0), (GIB, -1)])
def test_budgets_that_cannot_be(budget: int, cell: int) -> None:
    with pytest.raises(ValueError, match="cannot hold cells of"):
        plan.cells_in(budget, cell)


def test_ties_go_to_the_later_layer_and_expert() -> None:
    table = {2: [1, 1, 1, 1], 10: [1, 1, 1, 1], 9: [3, 3, 3, 3]}
    assert plan.place(shares_of(table), 6) == {2: [], 9: [2, 3], 10: [0, 1, 2, 3]}
    assert plan.ranking(shares_of(table))[:6] == [(10, 3), (10, 2), (10, 1), (10, 0), (9, 3), (9, 2)]


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 2**32), st.integers(0, 3), st.sampled_from([1, 7, 400, 30_000, 59_999, 60_000]))
def test_large_tables_go_the_quick_way_to_the_same_place(seed: int, spread: int, cells: int) -> None:
    """60,000 cells are ranked by a sample; with few different values, and with all equal ones, too."""
    random = Random(seed)
    scores = {layer: [random.randrange(10 ** (2 * spread)) * 1.0 for _ in range(6_000)] for layer in range(10)}
    ranked = sorted(((row[e], layer, e) for layer, row in scores.items() for e in range(6_000)), reverse=True)
    hot = plan.place(scores, cells)
    assert sorted((layer, e) for layer, chosen in hot.items() for e in chosen) == sorted(
        (layer, e) for _, layer, e in ranked[:cells]
    )
    assert plan.ranking(scores) == [(layer, e) for _, layer, e in ranked]


def test_a_sample_that_misleads_costs_time_and_not_truth() -> None:
    """Every value that the sample sees is small, all others are large."""
    values = [float(number) if number % 15 else -1.0 for number in range(60_000)]
    for rank in (1, 100, 30_000, 59_000, 60_000):
        assert plan._nth_largest(values, rank) == sorted(values, reverse=True)[rank - 1]


def test_coverage_counts_tokens_and_not_shares() -> None:
    table = {1: [90, 10], 2: [1, 0]}
    assert plan.coverage({1: [0], 2: []}, table) == 90 / 101
    assert plan.coverage({1: [], 2: [0]}, table) == 1 / 101
    with pytest.raises(ValueError, match=r"differ in layers \[2\]"):
        plan.coverage({1: [0]}, table)
    with pytest.raises(ValueError, match="nothing was counted"):
        plan.coverage({1: [0]}, {1: [0, 0]})


def test_jaccard() -> None:
    assert plan.jaccard({1: [0, 1], 2: [5]}, {1: [1, 2], 2: [5]}) == 2 / 4
    assert plan.jaccard({1: [0]}, {2: [0]}) == 0.0
    assert plan.jaccard({1: []}, {1: []}) == 1.0
    assert plan.jaccard({1: [3, 4]}, {1: [3, 4]}) == 1.0


def test_tokens_per_layer_are_those_of_the_emptiest_one() -> None:
    assert plan.tokens_per_layer({1: [8, 8, 8], 2: [7, 8, 8]}, 8) == 2


@given(st.integers(0, 1000), st.floats(0, 4))
def test_a_blend_is_linear_in_shares(seed: int, weight: float) -> None:
    offline, live = shares_of(rows(seed)), shares_of(rows(seed + 1))
    blended = plan.blend(offline, live, weight)
    for layer, row in blended.items():
        assert math.isclose(math.fsum(row), 1e6 * (1 + weight), rel_tol=1e-9)
        assert row == [1e6 * (a + weight * b) for a, b in zip(offline[layer], live[layer], strict=True)]


def test_what_cannot_be_blended() -> None:
    with pytest.raises(ValueError, match="differ in layers or experts"):
        plan.blend({1: [1.0]}, {2: [1.0]})
    with pytest.raises(ValueError, match="differ in layers or experts"):
        plan.blend({1: [1.0]}, {1: [0.5, 0.5]})
    for weight in (-1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="no weight of the live counts"):
            plan.blend({1: [1.0]}, {1: [1.0]}, weight)


def test_cells_of_one_size() -> None:
    assert plan.one_cell_size({1: CELL, 2: CELL}) == CELL
    with pytest.raises(ValueError, match="one size in bytes, found 10 in layer 2, 20 in layer 1"):
        plan.one_cell_size({1: 20, 2: 10})
    with pytest.raises(ValueError, match="found no layer"):
        plan.one_cell_size({})


@given(tables, st.integers(0, 40))
def test_a_plan_survives_its_file(table: dict[int, list[int]], cells: int) -> None:
    kept = plan.Plan(len(next(iter(table.values()))), plan.place(shares_of(table), cells), {"cells": cells})
    text = json.dumps(plan.plan_document(kept))
    assert plan.parse_plan(json.loads(text), "p.json") == kept


GOOD: dict[str, Any] = {"hotsplit_plan": 1, "experts": 4, "hot": {"1": [0, 3]}, "meta": {}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hotsplit_plan": 2}, "p.json: no plan of version 1"),
        ({"experts": 0}, '"experts" above 0'),
        ({"experts": True}, '"experts" above 0'),
        ({"hot": {}}, '"hot" with layers'),
        ({"hot": {"01": [0]}}, "'01' is no layer number"),
        ({"hot": {"1": [3, 0]}}, "at /hot/1: expected experts 0 to 3, ascending, each once"),
        ({"hot": {"1": [0, 0]}}, "each once"),
        ({"hot": {"1": [4]}}, "experts 0 to 3"),
        ({"hot": {"1": [-1]}}, "experts 0 to 3"),
        ({"hot": {"1": [True]}}, "experts 0 to 3"),
        ({"hot": {"1": None}}, "experts 0 to 3"),
        ({"meta": None}, '"meta"'),
    ],
)
def test_plans_that_are_none(change: dict[str, Any], message: str) -> None:
    assert plan.parse_plan(GOOD, "p.json").hot == {1: [0, 3]}
    with pytest.raises(ValueError, match=re.escape(message)):
        plan.parse_plan({**GOOD, **change}, "p.json")


def test_the_files_are_payloads_that_need_nothing() -> None:
    """They run in a server's image: the standard library alone, and neither imports the other."""
    import ast
    import sys

    for module in (counts, plan):
        tree = ast.parse(Path(str(module.__file__)).read_text())
        names = {each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names}
        names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names
