#!/usr/bin/env python3
"""How long a placement takes: shares and hot lists from counts, for two sizes, and for peers that do the same.

    python benchmarks/planner.py [--rounds 7] [--json FILE]

Sizes: 69 layers of 384 experts, as MiMo-V2.6-Pro-RL has them, and 1,000 layers of 1,024.  Counts are drawn from the
seed 1, with a few busy experts and many idle ones per layer.  Shown is the least time of all rounds, and its ratio over
that of each peer in the same process:

- tuples: ``sorted((share, layer, expert) ...)``, the definition, as one would write it first;
- argsort: numpy's stable argsort over all cells, counts given as an array, hot lists made of the result (where numpy is
  installed).

All of them make the same lists, which is checked before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fixpack.hotsplit.payload import counts, plan  # noqa: E402

Table = dict[int, list[float]]
Hot = dict[int, list[int]]

#: name -> layers, experts, hot cells, budget in seconds
SIZES = {"69 x 384": (69, 384, 8_192, 0.05), "1,000 x 1,024": (1_000, 1_024, 300_000, 1.0)}


def make(layers: int, experts: int) -> Table:
    """Counts as a recording has them: whole numbers, a long tail, many ties."""
    draw = random.Random(1)
    return {layer: [float(int(20 * draw.paretovariate(1.1)) - 20) for _ in range(experts)] for layer in range(layers)}


def ours(table: Table, cells: int) -> Hot:
    """The planner."""
    recorded = counts.Counts("benchmark", "B", {counts.MIXED: table}, {}, {})
    return plan.place(counts.shares(recorded, {counts.DECODE: 1.0}), cells)


def tuples(table: Table, cells: int) -> Hot:
    """One sort of tuples."""
    ranked = sorted(
        ((number / total, layer, expert) for layer, row in table.items() for total in [sum(row)]
         for expert, number in enumerate(row)),
        reverse=True,
    )  # fmt: skip
    hot: Hot = {layer: [] for layer in sorted(table)}
    for _, layer, expert in ranked[:cells]:
        hot[layer].append(expert)
    for chosen in hot.values():
        chosen.sort()
    return hot


def argsort(table: Table) -> Callable[[Table, int], Hot] | None:
    """numpy's way, the array already made; None without numpy."""
    try:
        import numpy
    except ModuleNotFoundError:
        return None
    layers = sorted(table)
    array = numpy.array([table[layer] for layer in layers])

    def place(_: Table, cells: int) -> Hot:
        shares = array / array.sum(axis=1, keepdims=True)
        chosen = numpy.zeros(array.size, dtype=bool)
        chosen[numpy.argsort(shares.ravel(), kind="stable")[::-1][:cells]] = True
        return {
            layer: numpy.flatnonzero(row).tolist()
            for layer, row in zip(layers, chosen.reshape(array.shape), strict=True)
        }

    return place


def least(function: Callable[[Table, int], Hot], table: Table, cells: int, rounds: int) -> float:
    """Seconds of the fastest round."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        function(table, cells)
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> int:
    """Time everything; returns 0 whatever the times are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    results: list[dict[str, Any]] = []
    for name, (layers, experts, cells, budget) in SIZES.items():
        table = make(layers, experts)
        peers: dict[str, Callable[[Table, int], Hot] | None] = {"tuples": tuples, "argsort": argsort(table)}
        expected = ours(table, cells)
        seconds = least(ours, table, cells, args.rounds)
        row: dict[str, Any] = {"size": name, "cells": cells, "seconds": seconds, "budget": budget, "peers": {}}
        print(f"{name}, {cells:,} hot cells: {1e3 * seconds:,.1f} ms, budget {1e3 * budget:,.0f} ms")
        for peer, function in peers.items():
            if function is None:
                print(f"  {peer}: numpy is not installed")
                continue
            if function(table, cells) != expected:
                print(f"  {peer}: makes other lists", file=sys.stderr)
                return 1
            theirs = least(function, table, cells, args.rounds)
            row["peers"][peer] = {"seconds": theirs, "ratio": seconds / theirs}
            print(f"  {peer}: {1e3 * theirs:,.1f} ms; the planner takes {seconds / theirs:.2f} times as long")
        results.append(row)
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
