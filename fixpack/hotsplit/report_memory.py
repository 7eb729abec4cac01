"""What the memory puzzle says: for people as text, for machines as JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from fixpack.hotsplit.memory import Answer, Machine, Model, Puzzle, Stock
from fixpack.hotsplit.report import gib, percent, table

CONTEXTS = (262_144, 1_048_576)  # shown where none is asked for
MIB = 1 << 20


def as_json(model: Model, machine: Machine, placed: Stock, solved: Sequence[Puzzle]) -> dict[str, Any]:
    """The report of ``memory``; every amount in bytes."""
    return {
        "model": {
            **model._asdict(),
            "cell": model.cell,
            "cells": model.cells,
            "scales": model.scales,
            "total": model.total,
        },
        "machine": {**machine._asdict(), "utilization": float(machine.utilization)},
        "stock": {
            "hbm": placed.hbm,
            "hbm_by_w13": placed.hbm_by_w13,
            "host": placed.host,
            "pinned_exact": placed.pinned(exact=True),
            "pinned_power_of_two": placed.pinned(exact=False),
            "layers": {place: placed.layers(place) for place in ("host", "mixed", "hbm")},
        },
        "budgets": [
            {
                **each._asdict(),
                "tokens": each.tokens._asdict(),
                "answers": [answer._asdict() for answer in each.answers],
                "fits": each.fits,
            }
            for each in solved
        ],
    }


def _ranges(layers: Sequence[int]) -> str:
    """ "layers 1 to 47, 50", "layer 48", "no layer"."""
    runs = []
    for _, run in groupby(enumerate(layers), key=lambda pair: pair[1] - pair[0]):
        numbers = [layer for _, layer in run]
        runs.append(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}")
    noun = "layer " if len(layers) == 1 else "layers "
    return noun + ", ".join(runs) if runs else "no layer"


def _said(answer: Answer) -> tuple[str, str, str]:
    """Verdict, question and reason; what stock would do is no condition, so it is told and not asked."""
    if answer.code != "stock_pin":
        return answer.verdict, f"{answer.question}?", answer.why
    would = "would load" if answer.verdict == "yes" else "would not load"
    return "(note)", f"stock vLLM {would}, with power-of-two pinning", answer.why


def as_text(model: Model, machine: Machine, placed: Stock, solved: Sequence[Puzzle], context: int) -> str:
    """The report of ``memory``: the model, stock's placement, every budget, and the answers for the last one."""
    lines = [
        f"{model.name}: {len(model.layers)} layers of {model.experts} experts; {model.cells:,} cells of "
        f"{model.cell / MIB:g} MiB (w13 {model.w13 / MIB:g}, w2 {model.w2 / MIB:g}), {gib(model.total)}, "
        f"and {gib(model.scales)} of scales",
        f"machine: {gib(machine.hbm)} of HBM, {float(machine.utilization):g} of it for vLLM, "
        f"{gib(machine.dense)} of other weights; {gib(machine.host)} of host memory, {gib(machine.host_other)} in use",
        "",
        "stock offload",
        f"  in host memory  {_ranges(placed.layers('host'))}: {gib(placed.host)} with the mixed ones; "
        f"pinned exactly, {gib(placed.pinned(exact=True))}; rounded up to powers of two, "
        f"{gib(placed.pinned(exact=False))}",
        f"  mixed           {_ranges(placed.layers('mixed'))}: w13 in host memory, w2 in HBM",
        f"  in HBM          {_ranges(placed.layers('hbm'))}: {gib(placed.hbm)} with the mixed ones' w2, "
        f"{gib(placed.hbm_by_w13)} without",
        "",
    ]
    contexts = (context,) if context else CONTEXTS
    head = ["hot GiB", "cells", "of all", "cold GiB", "rounded", "HBM left", "host left", "KV tokens", "from", "to"]
    head += [f"{each:,}" for each in contexts]
    rows = []
    for each in solved:
        low, high = each.tokens.low, each.tokens.high
        fits = ["yes" if low >= asked else "perhaps" if high >= asked else "no" for asked in contexts]
        row = [each.hot, each.cold, each.cold_rounded, each.hbm_free, each.host_free]
        hot, *others = (f"{amount / (1 << 30):,.2f}" for amount in row)
        cells = each.hot // model.cell
        tokens = [f"{number:,}" for number in (each.tokens.expected, low, high)]
        rows.append([hot, f"{cells:,}", percent(cells / model.cells), *others, *tokens, *fits])
    lines += table(head, rows)
    lines.append(
        "  HBM left: for KV cache, activations and graphs.  KV tokens: from a line through two measured boots of MiMo;"
    )
    lines.append('  the server\'s own log line "GPU KV cache size" decides.')
    if len(solved) == 1:
        said = [_said(answer) for answer in solved[0].answers]
        width = max(len(question) for _, question, _ in said)
        lines += ["", *(f"{verdict:>7}  {question:<{width}}  {why}" for verdict, question, why in said)]
    else:
        lines += ["", "one --hot-gib, or --plan, for every question in turn"]
    return "\n".join(lines)
