"""Held-out evaluation: splits, draws and intervals, all from one seed."""

from __future__ import annotations

import math
from random import Random

import pytest
from hotsplit_kit import rows, shape_a, shape_b
from hypothesis import given, settings
from hypothesis import strategies as st

from fixpack.hotsplit.evaluate import binomial, curve, evaluate, judged_by, split, stock_hot, thin
from fixpack.hotsplit.payload import counts, plan


def read(document: object, name: str = "x") -> counts.Counts:
    return counts.parse(document, name)


def test_a_held_out_part_is_used() -> None:
    found = split([read(shape_a(rows(1), holdout=rows(2)))], [], 0.3, 0)
    assert (found.how, found.train.train["decode"], found.tests) == ("holdout", rows(1), (rows(2),))


def test_files_that_were_set_aside_come_first() -> None:
    held = [read(shape_a(rows(3)), "y"), read(shape_a(rows(4), rows(5)), "z")]
    found = split([read(shape_a(rows(1), holdout=rows(2)))], held, 0.3, 0)
    assert (found.how, found.tests) == ("holdout", (rows(3), rows(4)))
    with pytest.raises(counts.BadCounts, match="y: counts 9 experts per layer, the model has 8"):
        split([read(shape_a(rows(1)))], [read(shape_a(rows(1, experts=9)), "y")], 0.3, 0)


@given(st.integers(2, 12), st.floats(0.01, 0.99), st.integers(0, 99))
def test_conversations_stay_whole(number: int, part: float, seed: int) -> None:
    several = [read(shape_b(rows(each)), str(each)) for each in range(number)]
    found = split(several, [], part, seed)
    assert found.how == "files"
    assert 1 <= len(found.tests) <= number - 1
    assert abs(len(found.tests) - part * number) <= 1
    whole = counts.total([found.train.train["mixed"], *found.tests])
    assert whole == counts.add(several).train["mixed"]
    assert all(table in [each.train["mixed"] for each in several] for table in found.tests)
    assert split(several, [], part, seed) == found


@given(st.integers(0, 99), st.floats(0.01, 0.99))
def test_thinning_divides_every_count(seed: int, part: float) -> None:
    one = read(shape_a(rows(seed), rows(seed + 1)))
    found = split([one], [], part, seed)
    assert found.how == "thinning"
    decode = found.train.train["decode"]
    assert counts.total([decode, found.tests[0]]) == rows(seed)
    assert all(number >= 0 for table in (decode, *found.tests) for row in table.values() for number in row)
    assert split([one], [], part, seed) == found


def test_thinning_takes_its_part() -> None:
    table = {1: [100_000.0] * 50, 2: [3.0] * 50}
    first, second = thin(table, 0.3, Random(0))
    for layer, total, spread in ((1, 5_000_000, 1025), (2, 150, 5.7)):
        assert abs(sum(second[layer]) - 0.3 * total) < 4 * spread
        assert sum(first[layer]) + sum(second[layer]) == total
    assert len(set(second[1])) > 40


def test_shares_are_no_tokens_that_could_be_divided() -> None:
    one = read(shape_a({1: [0.5, 1.5], 2: [1.0, 1.0]}))
    found = split([one], [], 0.3, 0)
    assert (found.how, found.tests) == ("in-sample", (one.train["decode"],))


def test_decode_is_what_counts() -> None:
    assert judged_by(read(shape_a(rows(1), rows(2))), held=False) == rows(1)
    assert judged_by(read(shape_b(rows(1))), held=False) == rows(1)
    assert judged_by(read({"train": {"prefill": {"1": [1, 2]}}}), held=False) == {1: [1, 2]}


@settings(deadline=None)
@given(st.integers(1, 60), st.floats(0.02, 0.98))
def test_draws_have_the_binomial_s_chances(number: int, chance: float) -> None:
    """The cumulated weights against the definition, for every outcome."""
    from fixpack.hotsplit.evaluate import _distribution

    start, cumulative = _distribution(number, chance)
    so_far = 0.0
    for outcome in range(number + 1):
        so_far += math.comb(number, outcome) * chance**outcome * (1 - chance) ** (number - outcome)
        inside = min(outcome - start, len(cumulative) - 1)
        weight = cumulative[inside] / cumulative[-1] if inside >= 0 else 0.0
        assert math.isclose(weight, so_far, rel_tol=1e-9, abs_tol=1e-12)


@pytest.mark.parametrize(("number", "chance"), [(5_000, 0.001), (200_000, 0.65), (3_000_000, 0.3), (2**53, 0.5)])
def test_draws_of_many(number: int, chance: float) -> None:
    random = Random(1)
    drawn = [binomial(number, chance, random) for _ in range(400)]
    mean, spread = number * chance, math.sqrt(number * chance * (1 - chance))
    assert abs(sum(drawn) / 400 - mean) < 4 * spread / 20
    around = math.sqrt(sum((each - mean) ** 2 for each in drawn) / 400)
    assert 0.8 * spread < around < 1.2 * spread


def test_draws_at_the_edges() -> None:
    random = Random(1)
    assert [binomial(9, 0.0, random), binomial(9, 1.0, random), binomial(0, 0.5, random)] == [0, 9, 0]


def test_stock_keeps_the_last_layers_whole() -> None:
    assert stock_hot((3, 1, 2), 2, 5) == {1: [], 2: [0, 1], 3: [0, 1]}
    assert stock_hot((1, 2), 2, 99) == {1: [0, 1], 2: [0, 1]}
    assert stock_hot((1, 2), 2, 1) == {1: [], 2: []}


def test_an_evaluation_by_hand() -> None:
    table = {1: [60.0, 30.0, 10.0], 2: [50.0, 25.0, 25.0]}
    found = evaluate({1: [1], 2: [0, 1]}, [table], "given", seed=0, resamples=200)
    assert (found.cells, found.test_tokens, found.unit) == (3, 200, "tokens")
    assert found.plan.value == (30 + 50 + 25) / 200
    assert found.oracle.value == (60 + 50 + 30) / 200
    assert found.stock.value == 100 / 200
    assert found.plan.low < found.plan.value < found.plan.high
    assert found.stock.low == found.stock.high == 0.5  # whole layers: as many tokens, whatever is drawn
    assert evaluate({1: [1], 2: [0, 1]}, [table], "given", seed=0, resamples=200) == found
    assert evaluate({1: [1], 2: [0, 1]}, [table], "given", seed=1, resamples=200) != found


def test_an_interval_has_the_width_that_theory_gives() -> None:
    """Two layers of 10,000 tokens at 30 and 60 %: 1.96 standard errors either way."""
    table = {1: [3000.0, 7000.0], 2: [6000.0, 4000.0]}
    found = evaluate({1: [0], 2: [0]}, [table], "given", resamples=4000)
    error = 1.96 * math.sqrt(10_000 * 0.3 * 0.7 + 10_000 * 0.6 * 0.4) / 20_000
    assert found.plan.value == 0.45
    assert found.plan.low == pytest.approx(0.45 - error, abs=error / 10)
    assert found.plan.high == pytest.approx(0.45 + error, abs=error / 10)


def test_conversations_that_differ_widen_the_interval() -> None:
    """Ten conversations, half of them all hot and half all cold: what resampling tokens would hide."""
    hot: dict[int, list[int]] = {1: [0]}
    mixed = [{1: [1000.0, 0.0]} if number % 2 else {1: [0.0, 1000.0]} for number in range(10)]
    found = evaluate(hot, mixed, "files")
    assert (found.unit, found.plan.value) == ("files", 0.5)
    assert found.plan.low <= 0.2
    assert found.plan.high >= 0.8
    together = evaluate(hot, [counts.total(mixed)], "thinning")
    assert together.plan.high - together.plan.low < 0.05


@given(st.integers(0, 50), st.integers(0, 32))
def test_nothing_beats_the_oracle(seed: int, cells: int) -> None:
    hot = plan.place(counts.shares(read(shape_b(rows(seed))), {"decode": 1.0}), cells)
    found = evaluate(hot, [rows(seed + 1)], "given", resamples=20)
    assert found.plan.value <= found.oracle.value + 1e-12
    assert found.stock.value <= found.oracle.value + 1e-12


def test_nothing_to_test_on() -> None:
    with pytest.raises(counts.BadCounts, match="hold no token at all"):
        evaluate({1: [0]}, [{1: [0.0, 0.0]}], "given")


def test_a_curve_is_the_coverage_of_each_budget() -> None:
    scores, table = rows(5), rows(6)
    found = curve(scores, table, points=16)
    assert (found.cells[0], found.cells[-1], found.covered[0], found.covered[-1]) == (0, 32, 0.0, 1.0)
    for cells, covered in zip(found.cells, found.covered, strict=True):
        assert covered == pytest.approx(plan.coverage(plan.place(scores, cells), table))
