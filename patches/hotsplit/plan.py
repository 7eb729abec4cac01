"""Which experts stay in HBM: from shares per expert to a placement, and how good it is.

The standard library alone, no state, no output: the command line and the installed fix use this one file, so that what
was looked at is what boots.  A cell is one expert of one MoE layer; all cells have one size.

A plan is kept as ``{"hotsplit_plan": 1, "experts": 384, "hot": {"1": [expert, ...], ...}, "meta": {...}}``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

GIB = 1 << 30
MIN_LIVE_TOKENS = 50_000  # decode tokens per layer; below, a re-rank follows noise
SCALE = 1e6  # what a layer's shares add up to in a re-ranked file, for each of its two parts

Table = dict[int, list[float]]  # layer -> one number per expert
Hot = dict[int, list[int]]  # layer -> its hot experts, ascending


def cells_in(budget_bytes: int, cell_bytes: int) -> int:
    """How many whole cells a budget holds.

    :raises ValueError: for a negative budget, or cells of no size.
    """
    if budget_bytes < 0 or cell_bytes <= 0:
        raise ValueError(f"a budget of {budget_bytes} bytes cannot hold cells of {cell_bytes} bytes")
    return budget_bytes // cell_bytes


def one_cell_size(cell_bytes: Mapping[int, int]) -> int:
    """The bytes of a cell, given those of each layer.

    :raises ValueError: if layers differ: a placement by share alone would not be the best one.
    """
    sizes = {size: layer for layer, size in cell_bytes.items()}
    if len(sizes) != 1:
        text = ", ".join(f"{size} in layer {layer}" for size, layer in sorted(sizes.items()))
        raise ValueError(f"the experts of all layers must have one size in bytes, found {text or 'no layer'}")
    return next(iter(sizes))


def place(scores: Table, cells: int) -> Hot:
    """The first ``cells`` cells, or all, in descending order of (score, layer, expert).

    :raises ValueError: for a negative number.
    """
    if cells < 0:
        raise ValueError(f"{cells} cells cannot be placed")
    order = sorted(scores)
    values = list(chain.from_iterable(scores[layer] for layer in order))
    if not cells or not values:
        return {layer: [] for layer in order}
    cells = min(cells, len(values))
    bar = _nth_largest(values, cells)
    hot = {layer: [expert for expert, score in enumerate(scores[layer]) if score >= bar] for layer in order}
    surplus = sum(map(len, hot.values())) - cells
    for layer in order:  # of the cells that just reach the bar, these do not fit
        if surplus:
            drop = {expert for expert in hot[layer] if scores[layer][expert] == bar}
            drop = set(sorted(drop)[:surplus])
            hot[layer] = [expert for expert in hot[layer] if expert not in drop]
            surplus -= len(drop)
    return hot


def _nth_largest(values: list[float], rank: int) -> float:
    """What ``sorted(values, reverse=True)[rank - 1]`` is, in a third of its time for a million values.

    A sample brackets the rank; where it misleads, everything is sorted.
    """
    if len(values) > 50_000:
        sample = sorted(values[:: len(values) // 4000], reverse=True)
        at = rank * len(sample) // len(values)
        high, low = sample[max(at - 200, 0)], sample[min(at + 200, len(sample) - 1)]
        above = sum(1 for value in values if value > high)
        band = [value for value in values if low <= value <= high]
        if above < rank <= above + len(band):
            return sorted(band, reverse=True)[rank - above - 1]
    return sorted(values, reverse=True)[rank - 1]


def ranking(scores: Table) -> list[tuple[int, int]]:
    """Every cell as (layer, expert), in the order in which ``place`` takes them."""
    cells = [(layer, expert) for layer in sorted(scores) for expert in range(len(scores[layer]))]
    values = list(chain.from_iterable(scores[layer] for layer in sorted(scores)))
    return [cells[number] for number in sorted(range(len(cells)), key=values.__getitem__)[::-1]]


def cold_of(hot: Hot, experts: int) -> Hot:
    """The cold experts of each layer: with the hot ones, each expert once."""
    result = {}
    for layer, chosen in hot.items():
        there = set(chosen)
        result[layer] = [expert for expert in range(experts) if expert not in there]
    return result


def coverage(hot: Mapping[int, Sequence[int]], counts: Table) -> float:
    """The part of all counted tokens that goes to hot experts, 0 to 1.

    :raises ValueError: if the layers differ, or nothing was counted.
    """
    if hot.keys() != counts.keys():
        raise ValueError(f"the plan and the counts differ in layers {sorted(hot.keys() ^ counts.keys())}")
    total = math.fsum(chain.from_iterable(counts.values()))
    if not total:
        raise ValueError("nothing was counted")
    return math.fsum(counts[layer][expert] for layer, chosen in hot.items() for expert in chosen) / total


def headline(layers: int, budget: int, stock: int, cells: int, of_cells: int) -> str:
    """The line by which a plan is recognised, in the server's log and at the command line; ``stock``: whole layers."""
    return (
        f"hotsplit plan: {layers} layers, budget {budget / GIB:.1f} GiB (stock HBM experts {stock / GIB:.1f} GiB), "
        f"hot cells {cells}/{of_cells}"
    )


def jaccard(one: Mapping[int, Sequence[int]], other: Mapping[int, Sequence[int]]) -> float:
    """Cells that both hold, over cells that either holds; 1 for two empty ones."""
    both = sum(len(set(one[layer]) & set(other[layer])) for layer in one.keys() & other.keys())
    either = sum(map(len, one.values())) + sum(map(len, other.values())) - both
    return both / either if either else 1.0


def tokens_per_layer(counts: Table, top_k: int) -> int:
    """Tokens that passed the layer with the fewest; each is counted at ``top_k`` experts."""
    return int(min(math.fsum(row) for row in counts.values()) // top_k)


def blend(offline: Table, live: Table, live_weight: float = 1.0) -> Table:
    """Offline and live shares as one table of scores, in parts per million of a layer.

    :raises ValueError: if layers or experts differ, or the weight is below zero.
    """
    if offline.keys() != live.keys() or any(len(offline[layer]) != len(live[layer]) for layer in offline):
        raise ValueError("the offline and the live counts differ in layers or experts")
    if not 0 <= live_weight < math.inf:
        raise ValueError(f"{live_weight} is no weight of the live counts")
    return {
        layer: [SCALE * (old + live_weight * new) for old, new in zip(offline[layer], live[layer], strict=True)]
        for layer in sorted(offline)
    }


class Plan(NamedTuple):
    """A placement as it is kept in a file."""

    experts: int  # per layer
    hot: Hot
    meta: dict[str, Any]  # what it was made from


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values."""
    hot = {str(layer): plan.hot[layer] for layer in sorted(plan.hot)}
    return {"hotsplit_plan": 1, "experts": plan.experts, "hot": hot, "meta": plan.meta}


def parse_plan(document: Any, source: str) -> Plan:
    """A plan from JSON values; ``source`` names it in messages.

    :raises ValueError: if it is no plan of this version, or a hot list is not ascending experts of the model.
    """
    if not isinstance(document, dict) or document.get("hotsplit_plan") != 1:
        raise ValueError(f'{source}: no plan of version 1 ("hotsplit_plan": 1)')
    experts, hot, meta = (document.get(key) for key in ("experts", "hot", "meta"))
    if type(experts) is not int or experts < 1 or not isinstance(hot, dict) or not hot or not isinstance(meta, dict):
        raise ValueError(f'{source}: a plan needs "experts" above 0, "hot" with layers, and "meta"')
    for key, chosen in hot.items():
        if not (key.isascii() and key.isdigit() and len(key) < 7 and str(int(key)) == key):
            raise ValueError(f"{source}, at /hot: {key!r} is no layer number")
        sound = isinstance(chosen, list) and all(type(each) is int and 0 <= each < experts for each in chosen)
        if not sound or chosen != sorted(set(chosen)):
            raise ValueError(f"{source}, at /hot/{key}: expected experts 0 to {experts - 1}, ascending, each once")
    return Plan(experts, {number: hot[str(number)] for number in sorted(map(int, hot))}, meta)
