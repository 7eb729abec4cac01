"""What the planner says: for people as text, for machines as JSON values."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from fixpack.hotsplit.evaluate import HOW, UNIT, Estimate, Evaluation
from fixpack.hotsplit.memory import GIB, Model, Stock
from fixpack.hotsplit.payload import counts, plan
from fixpack.hotsplit.planning import Judged, Planned, Reranked
from fixpack.text import plural


def gib(size: float) -> str:
    """Bytes as "152.80 GiB"."""
    return f"{size / GIB:,.2f} GiB"


def percent(part: float) -> str:
    """A part as "65.6 %"."""
    return f"{100 * part:.1f} %"


def estimate(found: Estimate) -> str:
    """A part with its interval."""
    return f"{100 * found.value:.1f} % [{100 * found.low:.1f}, {100 * found.high:.1f}]"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Right-aligned columns, two spaces apart."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in (head, *rows)]


def wrote(path: str) -> None:
    """Say on stderr that a file is there."""
    print(f"written: {path}", file=sys.stderr)


def evaluation_json(found: Evaluation) -> dict[str, Any]:
    """An evaluation as JSON values."""
    parts = {name: getattr(found, name)._asdict() for name in ("plan", "oracle", "stock")}
    return {**found._asdict(), **parts, "interval": "95 % by bootstrap", "caveat": UNIT[found.unit]}


def plan_json(made: Planned, placed: Stock, document: Mapping[str, Any]) -> dict[str, Any]:
    """The report of ``plan``."""
    return {
        **_made_json(made),
        "stock_hbm_bytes": placed.hbm,
        "stock_hbm_bytes_by_w13": placed.hbm_by_w13,
        "hot_per_layer": {str(layer): len(chosen) for layer, chosen in made.hot.items()},
        "plan": document,
    }


def _made_json(made: Planned) -> dict[str, Any]:
    return {
        "budget_bytes": made.budget,
        "cells": made.cells,
        "of_cells": made.model.cells,
        "hot_bytes": made.cells * made.model.cell,
        "coverage": made.covered,
        "stock_coverage": made.stock,
        "held_out": evaluation_json(made.held_out),
    }


def plan_text(made: Planned, placed: Stock) -> str:
    """The report of ``plan``; its first line is the one that the server logs."""
    model, sizes = made.model, [len(chosen) for chosen in made.hot.values()]
    cold = (model.cells - made.cells) * model.cell
    lines = [
        plan.headline(len(model.layers), made.budget, placed.hbm_by_w13, made.cells, model.cells),
        f"  counts    {made.counts.source}: " + _phases(made),
        f"  hot       {min(sizes)} to {max(sizes)} of {model.experts} experts per layer, "
        f"{gib(made.cells * model.cell)}; cold {gib(cold)}",
        f"  stock     {gib(placed.hbm_by_w13)} in whole layers in HBM, {gib(placed.hbm)} tensor by tensor",
        f"  covers    {percent(made.covered)} of the tokens that it was made from; whole layers {percent(made.stock)}",
        *_held_out(made.held_out),
    ]
    return "\n".join(lines)


def _phases(made: Planned) -> str:
    if list(made.weights) == [counts.MIXED]:
        return "prefill and decode mixed, so no phase can be weighted"
    return ", ".join(f"{phase} x {weight:g}" for phase, weight in made.weights.items())


def _held_out(found: Evaluation) -> list[str]:
    if found.how == "in-sample":
        return ["  held out  cannot be said: the counts are shares; name recordings with --holdout"]
    return [
        f"  held out  {estimate(found.plan)} of {found.test_tokens:,} routed pairs; "
        f"best possible {estimate(found.oracle)}; whole layers {estimate(found.stock)}",
        f"            {HOW[found.how]}",
        f"            intervals of 95 %: {UNIT[found.unit]}",
    ]


def coverage_json(rows: Sequence[Planned]) -> dict[str, Any]:
    """The report of ``coverage`` over budgets."""
    return {"counts": rows[0].counts.source, "budgets": [_made_json(each) for each in rows]}


def coverage_text(rows: Sequence[Planned]) -> str:
    """The report of ``coverage`` over budgets."""
    head = ["GiB", "hot cells", "of all", "in sample", "held out", "best possible", "whole layers"]
    body = [
        [
            f"{made.budget / GIB:.2f}",
            f"{made.cells:,}",
            percent(made.cells / made.model.cells),
            percent(made.covered),
            "-" if made.held_out.how == "in-sample" else estimate(made.held_out.plan),
            "-" if made.held_out.how == "in-sample" else estimate(made.held_out.oracle),
            percent(made.held_out.stock.value),
        ]
        for made in rows
    ]
    found = rows[0].held_out
    notes = [f"held out: {HOW[found.how]}", f"intervals of 95 %: {UNIT[found.unit]}"]
    return "\n".join([rows[0].counts.source, *table(head, body), *notes])


def judged_json(judged: Judged) -> dict[str, Any]:
    """The report of ``coverage --plan``."""
    by_layer = {str(layer): part for layer, part in judged.by_layer.items()}
    return {**evaluation_json(judged.evaluation), "by_layer": by_layer}


def judged_text(judged: Judged, model: Model) -> str:
    """The report of ``coverage --plan``."""
    found = judged.evaluation
    worst = sorted(judged.by_layer, key=lambda layer: (judged.by_layer[layer], layer))[:5]
    lost = found.oracle.value - found.plan.value
    return "\n".join(
        [
            f"the plan's {found.cells:,} hot cells ({gib(found.cells * model.cell)}) serve {estimate(found.plan)} "
            f"of {found.test_tokens:,} routed pairs",
            f"  best possible  {estimate(found.oracle)}, {100 * lost:.1f} points more",
            f"  whole layers   {estimate(found.stock)}",
            "  worst layers   " + ", ".join(f"{layer}: {percent(judged.by_layer[layer])}" for layer in worst),
            f"  intervals of 95 %: {UNIT[found.unit]}",
        ]
    )


def reranked_json(found: Reranked, budget: int) -> dict[str, Any]:
    """The report of ``rerank``."""
    return {
        "budget_bytes": budget,
        "cells": sum(map(len, found.new.values())),
        "live_tokens_per_layer": found.tokens,
        "needed_tokens_per_layer": plan.MIN_LIVE_TOKENS,
        "jaccard": found.jaccard,
        "jaccard_by_layer": {str(layer): value for layer, value in found.jaccard_by_layer.items()},
        "live_coverage": {
            "old": found.old_covers,
            "new": found.new_covers,
            "oracle": found.oracle_covers,
            "stock": found.stock_covers,
        },
    }


def reranked_text(found: Reranked, budget: int) -> str:
    """The report of ``rerank``."""
    cells = sum(map(len, found.new.values()))
    changed = sum(len(set(found.new[layer]) - set(found.old[layer])) for layer in found.new)
    least = sorted(found.jaccard_by_layer, key=lambda layer: (found.jaccard_by_layer[layer], layer))[:5]
    return "\n".join(
        [
            f"re-ranked: {found.tokens:,} live decode tokens per layer at least, {plan.MIN_LIVE_TOKENS:,} needed",
            f"  at {gib(budget)}, {plural(changed, 'cell')} of {cells:,} would change; "
            f"Jaccard of the old and the new list {found.jaccard:.2f}",
            f"  live tokens served: old list {percent(found.old_covers)}, new list {percent(found.new_covers)}, "
            f"best possible {percent(found.oracle_covers)}, whole layers {percent(found.stock_covers)}",
            "  most changed layers: " + ", ".join(f"{layer} ({found.jaccard_by_layer[layer]:.2f})" for layer in least),
            "  the new list was blended from these very tokens: what it serves of the next ones will be a little less",
        ]
    )
