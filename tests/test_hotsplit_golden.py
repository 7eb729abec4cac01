"""The public histogram of MiMo-V2.6-Pro-RL: 69 layers of 384 experts, eight prompts.

It is not part of this repository.  ``FIXPACK_EXPERT_HIST=expert_hist_8prompt.json`` names it.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from hotsplit_kit import exact_place, hotsplit

from fixpack.hotsplit.memory import GIB, MIMO
from fixpack.hotsplit.payload import counts, plan

HISTOGRAM = os.environ.get("FIXPACK_EXPERT_HIST", "")  # read before the tests are sealed from the environment
SHA256 = "79ac144ba9ea70300c2ee26dafcbabe3c9dff9478a53030fd7ce5d63990b8328"

pytestmark = pytest.mark.skipif(not HISTOGRAM, reason="FIXPACK_EXPERT_HIST does not name the public histogram")


@pytest.fixture(scope="module")
def table() -> counts.Table:
    found = counts.read(HISTOGRAM)
    assert hashlib.sha256(Path(HISTOGRAM).read_bytes()).hexdigest() == SHA256
    return found.train["mixed"]


@pytest.fixture(scope="module")
def scores() -> counts.Table:
    return counts.shares(counts.read(HISTOGRAM), counts.parse_weights(counts.DEFAULT_WEIGHTS))


def test_the_data(table: counts.Table) -> None:
    assert list(table) == list(range(1, 70))
    assert {len(row) for row in table.values()} == {384}
    assert {sum(row) for row in table.values()} == {24_088}
    assert sum(row.count(0) for row in table.values()) == 698
    assert table[8].count(0) == 128


@pytest.mark.parametrize(("part", "covered"), [(0.1, 0.3419), (0.2, 0.5162), (0.3, 0.6452), (0.5, 0.8303)])
def test_traffic_of_the_busiest_cells(table: counts.Table, scores: counts.Table, part: float, covered: float) -> None:
    assert round(plan.coverage(plan.place(scores, int(part * 26_496)), table), 4) == covered


@pytest.mark.parametrize(
    ("budget", "cells", "covered"),
    [(110, 6257, 0.5666), (141.75, 8064, 0.6501), (144, 8192, 0.6556), (152.8, 8692, 0.6762)],
)
def test_coverage_of_the_budget_table(
    table: counts.Table, scores: counts.Table, budget: float, cells: int, covered: float
) -> None:
    assert plan.cells_in(int(budget * GIB), MIMO.cell) == cells
    assert round(plan.coverage(plan.place(scores, cells), table), 4) == covered


@pytest.mark.parametrize(("cells", "fewest", "most"), [(8064, 88, 141), (8692, 105, 153)])
def test_hot_experts_per_layer(table: counts.Table, scores: counts.Table, cells: int, fewest: int, most: int) -> None:
    hot = plan.place(scores, cells)
    assert (min(map(len, hot.values())), max(map(len, hot.values()))) == (fewest, most)
    assert hot == exact_place(table, cells)


def test_the_line_of_the_server_s_log() -> None:
    first = hotsplit("plan", HISTOGRAM, "--budget-gib", "152.8").out.splitlines()[0]
    assert first == ("hotsplit plan: 69 layers, budget 152.8 GiB (stock HBM experts 141.8 GiB), hot cells 8692/26496")


def test_the_verb() -> None:
    done = hotsplit("plan", HISTOGRAM, "--budget-gib", "141.75", "--json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert (found["cells"], found["of_cells"]) == (8064, 26_496)
    assert round(found["coverage"], 4) == 0.6501
    assert found["stock_coverage"] == pytest.approx(21 / 69)
    held = found["held_out"]
    assert held["how"] == "thinning"
    # another generator's 70/30 thinning gave 0.6422, 0.6587 and 0.3048: within what two thinnings differ by
    assert held["plan"]["value"] == pytest.approx(0.6422, abs=0.003)
    assert held["oracle"]["value"] == pytest.approx(0.6587, abs=0.003)
    assert held["stock"]["value"] == pytest.approx(0.3048, abs=0.003)
    assert held["plan"]["low"] < held["plan"]["value"] < held["plan"]["high"] < held["oracle"]["low"]
