"""The memory puzzle: byte counts by hand, and the figures that were measured on the machine."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixpack.hotsplit.memory import (
    GIB,
    KV_TOKENS,
    MIMO,
    Machine,
    Model,
    Stock,
    kv_tokens,
    most_hot,
    pinned_banks,
    power_of_two,
    solve,
    spread,
    stock,
    usual_budgets,
)
from fixpack.hotsplit.payload import order

MIB = 1 << 20
GB300 = Machine()


def gib(amount: str) -> int:
    return int(Fraction(amount) * GIB)


def test_the_model_s_sizes() -> None:
    assert (MIMO.w13, MIMO.w2, MIMO.cell) == (12 * MIB, 6 * MIB, 18 * MIB)
    assert MIMO.cells == 69 * 384 == 26_496
    assert MIMO.total == gib("465.75")
    assert MIMO.scales == 26_496 * 1_179_648


@pytest.mark.parametrize(
    ("budget", "cells"), [("141.75", 8064), ("144", 8192), ("152.8", 8692), ("110", 6257), ("0", 0), ("465.75", 26_496)]
)
def test_the_budget_table(budget: str, cells: int) -> None:
    assert gib(budget) // MIMO.cell == cells
    assert sum(spread(MIMO, gib(budget))) == cells


def test_cold_bytes_of_the_budget_table() -> None:
    cold = [MIMO.total - gib(each) // MIMO.cell * MIMO.cell for each in ("141.75", "144", "152.8", "110")]
    assert [round(each / GIB, 2) for each in cold] == [324.0, 321.75, 312.96, 355.76]


def test_stock_at_320_splits_layer_48() -> None:
    placed = stock(MIMO, gib("320"))
    assert placed.layers("host") == tuple(range(1, 48))
    assert placed.layers("mixed") == (48,)
    assert placed.layers("hbm") == tuple(range(49, 70))
    assert placed.host == gib("321.75")
    assert (placed.hbm, placed.hbm_by_w13) == (gib("144"), gib("141.75"))
    assert [each[1:] for each in placed.tensors if each.layer == 48] == [
        ("w13", gib("4.5"), True),
        ("w2", gib("2.25"), False),
    ]


@pytest.mark.parametrize(
    ("offload", "asked", "pinned"),
    [
        ("320", "321.75", "572"),
        ("301", "301.5", "536"),  # 44 whole layers, and the w13 of one more
        ("283.5", "283.5", "504"),  # 42 whole layers
        ("0", "0", "0"),
        ("40", "40.5", "72"),
        ("465.75", "465.75", "828"),
        ("9999", "465.75", "828"),
    ],
)
def test_what_stock_pins(offload: str, asked: str, pinned: str) -> None:
    placed = stock(MIMO, gib(offload))
    assert placed.host == placed.pinned(exact=True) == gib(asked)
    assert placed.pinned(exact=False) == gib(pinned)
    assert placed.host + placed.hbm == MIMO.total


@given(st.integers(0, 500 * GIB))
def test_stock_overshoots_by_less_than_one_tensor(offload: int) -> None:
    placed = stock(MIMO, offload)
    assert min(offload, MIMO.total) <= placed.host < offload + gib("4.5") or placed.host == MIMO.total
    assert placed.hbm - placed.hbm_by_w13 in (0, gib("2.25"))
    assert len(placed.layers("mixed")) <= 1


@given(st.integers(1, 1 << 50))
def test_the_next_power_of_two(size: int) -> None:
    found = power_of_two(size)
    assert found.bit_count() == 1
    assert found // 2 < size <= found
    assert power_of_two(0) == 0


def test_cold_banks_by_hand() -> None:
    assert pinned_banks(MIMO, [384, 0], exact=True) == gib("6.75")
    assert pinned_banks(MIMO, [384, 0], exact=False) == gib("12")
    assert pinned_banks(MIMO, [258], exact=False) == gib("4") + gib("2")


@given(st.integers(0, 500 * GIB))
def test_an_even_spread_is_even(budget: int) -> None:
    sizes = spread(MIMO, budget)
    assert len(sizes) == 69
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == min(budget // MIMO.cell, MIMO.cells)


def test_kv_tokens_of_the_measured_boots() -> None:
    """141.75 and 152.8 GiB are on the line; 110 GiB, with 1M context, had 8 % more than the line says."""
    assert kv_tokens(MIMO, GB300, gib("141.75")) == (513_612, 513_612, 513_612)
    found = kv_tokens(MIMO, GB300, gib("152.8"))
    assert found.expected == pytest.approx(302_368, abs=2)
    assert found.low < 302_324 < found.high
    far = kv_tokens(MIMO, GB300, gib("110"))
    assert far.expected == pytest.approx(1_209_097, rel=0.08)
    assert far.low < far.expected < far.high < 1_209_097


def test_context_lengths_that_were_run() -> None:
    assert most_hot(MIMO, GB300, 262_144) >= gib("152.8")
    assert most_hot(MIMO, GB300, 1_048_576) >= gib("110")
    assert most_hot(MIMO, GB300, 1_048_576) < gib("111")
    assert most_hot(MIMO, GB300, 10**9) == -1
    assert most_hot(MIMO, GB300, 1) < gib("170")


@given(st.integers(1, 2_000_000))
def test_the_most_hot_is_the_most(context: int) -> None:
    most = most_hot(MIMO, GB300, context)
    assert kv_tokens(MIMO, GB300, most).low >= context
    assert kv_tokens(MIMO, GB300, most + MIMO.cell).low < context


def test_another_machine_moves_the_line() -> None:
    larger = GB300._replace(hbm=GB300.hbm + 10 * GIB, utilization=Fraction(1))
    assert kv_tokens(MIMO, larger, gib("161.75")).expected == KV_TOKENS
    assert kv_tokens(MIMO, GB300._replace(dense=GB300.dense + GIB), gib("140.75")).expected == KV_TOKENS
    assert kv_tokens(MIMO, GB300._replace(hbm=0), 0) == (0, 0, 0)


def verdicts(
    machine: Machine = GB300, hot: str = "152.8", context: int = 262_144, offload: str = "320"
) -> dict[str, str]:
    found = solve(MIMO, machine, stock(MIMO, gib(offload)), spread(MIMO, gib(hot)), context=context)
    return {answer.code: answer.verdict for answer in found.answers}


def test_the_puzzle_of_the_measured_machine() -> None:
    """Stock cannot load; with exact pinning everything fits, 256K beside 152.8 GiB, 1M beside 110 GiB."""
    fine = {"load_host", "load_hbm", "split_hbm", "split_host", "hot", "context"}
    assert verdicts() == {"stock_pin": "no", **dict.fromkeys(fine, "yes")}
    assert verdicts(hot="110", context=1_048_576) == {"stock_pin": "no", **dict.fromkeys(fine, "yes")}
    assert verdicts(hot="144", context=1_048_576)["context"] == "no"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"host": 380 * GIB}, "load_host"),
        ({"hbm": 205 * GIB}, "load_hbm"),
        ({"hbm": 211 * GIB}, "split_hbm"),
        ({"host": 405 * GIB}, "split_host"),
        ({"hbm": 222 * GIB}, "hot"),
        ({"hbm": 249 * GIB}, "context"),
    ],
)
def test_each_question_can_be_answered_no(change: dict[str, int], code: str) -> None:
    found = verdicts(GB300._replace(**change))
    assert found[code] in ("no", "perhaps"), found


def test_what_the_split_needs() -> None:
    """Golden, by hand: 4 GiB, the fullest hot bank and its scales in HBM; on the host, a cold bank, or all of them."""
    hot = [100] * 68 + [156]
    found = solve(MIMO, GB300, stock(MIMO, gib("320")), hot)
    assert found.split_margin == 4 * GIB + 156 * 18 * MIB + 384 * 1_179_648
    assert found.split_hbm_free == 250 * GIB - GB300.dense - MIMO.scales - 144 * GIB
    assert found.split_host_free == found.host_free > order.FLOOR  # more is cold in the end than was in the beginning
    assert found.cold == MIMO.total - found.hot == pinned_banks(MIMO, [384 - each for each in hot], exact=True)
    assert found.host_free == (494 - 59) * GIB - found.cold
    assert found.fits
    warm = solve(MIMO, GB300, stock(MIMO, gib("320")), [130] * 69)  # less in the end, but a bank more at first
    assert warm.split_host_free == (494 - 59) * GIB - gib("321.75") - 254 * 18 * MIB < warm.host_free


def test_budgets_to_look_at() -> None:
    placed = stock(MIMO, gib("320"))
    budgets = usual_budgets(MIMO, placed)
    assert {gib(each) for each in ("110", "141.75", "144", "152.8")} < set(budgets)
    assert budgets == sorted(set(budgets))
    small = Model("small", (0, 1), 5, 64, 32, 2)
    fifths = [fifth * small.total // 5 for fifth in range(1, 6)]
    for offload in (0, small.total, gib("320")):
        assert usual_budgets(small, stock(small, offload)) == fifths
    assert usual_budgets(Model("one", (0,), 1, 1, 1, 1), Stock(())) == [1]
