"""Small invented models and histograms for the planner's tests, and a slow, exact planner to hold it against."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

from kit import Done

from fixpack import cli

LAYERS = (1, 2, 3, 4)
EXPERTS = 8
#: one expert is 2 x 2048 x 3072 + 6144 x 1024 bytes, as in the real model, so that budgets read alike
CONFIG = {
    "hidden_size": 6144,
    "moe_intermediate_size": 2048,
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 5,
    "moe_layer_freq": [0, 1, 1, 1, 1],
}
MIB = 1 << 20

Rows = Mapping[int, Sequence[float]]


def rows(seed: int, layers: Sequence[int] = LAYERS, experts: int = EXPERTS, top: int = 1000) -> dict[int, list[int]]:
    """Counts with a few busy experts and a few idle ones per layer."""
    random = Random(seed)
    return {layer: [int(top * random.random() ** 3) for _ in range(experts)] for layer in layers}


def shape_a(decode: Rows, prefill: Rows | None = None, holdout: Rows | None = None, **meta: Any) -> dict[str, Any]:
    """Counts by phase."""
    train = {"decode": _keys(decode), **({"prefill": _keys(prefill)} if prefill else {})}
    return {"train": train, **({"holdout": {"decode": _keys(holdout)}} if holdout else {}), "meta": meta}


def shape_b(mixed: Rows) -> dict[str, Any]:
    """Counts without phases, with the sums that the public file has."""
    return {
        str(layer): {"counts": list(row), "total": sum(row), "never_routed": sum(each == 0 for each in row)}
        for layer, row in mixed.items()
    }


def shape_c(decode: Rows, **meta: Any) -> dict[str, Any]:
    """What a server counted."""
    return {"live": {"decode": _keys(decode)}, "meta": {"since": "t0", "at": "t1", "note": "test", **meta}}


def _keys(table: Rows) -> dict[str, list[float]]:
    return {str(layer): list(row) for layer, row in table.items()}


def exact_place(table: Rows, cells: int) -> dict[int, list[int]]:
    """The placement by definition: fractions, tuples and one sort."""
    shares = [
        (Fraction(number) / Fraction(sum(row)), layer, expert)
        for layer, row in table.items()
        for expert, number in enumerate(row)
    ]
    chosen = sorted(shares, reverse=True)[:cells]
    return {layer: sorted(expert for _, at, expert in chosen if at == layer) for layer in sorted(table)}


def write(path: Path, document: Any) -> Path:
    """A JSON file, gzipped if its name says so."""
    data = json.dumps(document).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def hotsplit(*args: str | Path) -> Done:
    """``fixpack hotsplit`` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(["hotsplit", *map(str, args)])
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Done(code, out.getvalue(), err.getvalue())
