"""What a picture of a plan shows, whoever draws it: numbers only."""

from __future__ import annotations

from typing import NamedTuple

from fixpack.hotsplit.evaluate import Curve, curve
from fixpack.hotsplit.memory import GIB
from fixpack.hotsplit.payload import counts
from fixpack.hotsplit.planning import Planned


class Row(NamedTuple):
    """One layer, its experts in descending order of share."""

    layer: int
    times: tuple[float, ...]  # share, in multiples of an expert's equal share
    hot: tuple[bool, ...]


class Scene(NamedTuple):
    """A plan as it is drawn."""

    headline: str
    facts: str
    rows: tuple[Row, ...]
    experts: int
    cells: int  # hot
    of_cells: int
    cell_gib: float
    planned: Curve  # coverage of held-out tokens, as the plan's order takes cells
    best: Curve  # the same in the held-out tokens' own order
    held_out: bool  # False: the tokens are those that the plan was made from


def scene(made: Planned) -> Scene:
    """Arrange a plan for drawing."""
    rows = []
    for layer, row in made.scores.items():
        there = set(made.hot[layer])
        order = sorted(range(len(row)), key=lambda expert: (row[expert], expert), reverse=True)
        times = tuple(row[expert] * made.model.experts for expert in order)
        rows.append(Row(layer, times, tuple(expert in there for expert in order)))
    found, size = made.held_out, made.cells * made.model.cell / GIB
    held = found.how != "in-sample"
    headline = (
        f"{100 * found.plan.value:.1f} % of {'held-out' if held else 'the'} traffic stays in HBM; "
        f"whole layers would keep {100 * found.stock.value:.1f} %"
    )
    facts = (
        f"{made.model.name}: {made.cells:,} of {made.model.cells:,} experts hot ({size:,.2f} GiB), "
        f"{min(map(len, made.hot.values()))} to {max(map(len, made.hot.values()))} of {made.model.experts} per layer"
    )
    table = counts.total(made.split.tests)
    trained = counts.shares(made.split.train, made.weights)
    return Scene(
        headline,
        facts,
        tuple(rows),
        made.model.experts,
        made.cells,
        made.model.cells,
        made.model.cell / GIB,
        curve(trained, table),
        curve(table, table),
        held,
    )
