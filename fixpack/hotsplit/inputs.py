"""What the command line reads: counts, plans, model configurations.  Every fault is one problem."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from fixpack.errors import FixpackError, Problem, UsageError
from fixpack.hotsplit.memory import MIMO, Model
from fixpack.hotsplit.payload import counts, plan

MOST_LAYERS, MOST_EXPERTS, LARGEST_SIZE = 10_000, 65_536, 1 << 24  # of a config.json; beyond, it is no model's


@contextlib.contextmanager
def problems(source: str = "") -> Iterator[None]:
    """Turn what the planner's files raise into the engine's problems.

    :raises UsageError: for counts or plans that cannot be used, or files that cannot be read.
    """
    try:
        yield
    except counts.BadCounts as error:
        message = f"{error.message} (at {error.at})" if error.at else error.message
        raise UsageError(Problem("bad_counts", message, file=error.source, line=error.line, hint=error.hint)) from error
    except ValueError as error:
        raise UsageError(Problem("bad_input", str(error), file=source)) from error
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        raise UsageError(Problem("io_error", message, file=source or str(error.filename or ""))) from error


def read_counts(paths: Sequence[str], model: Model, revision: str = "") -> list[counts.Counts]:
    """Read files of counts and hold each against the model; all faulty files are reported.

    :raises UsageError: if one cannot be used, or one is given twice.
    """
    found, wrong = [], []
    real = [os.path.realpath(path) for path in paths]
    for number, path in enumerate(paths):
        if real[number] in real[:number]:
            wrong.append(Problem("bad_usage", "given twice: its tokens would count twice", file=path))
            continue
        try:
            with problems(path):
                each = counts.read(path)
                counts.require_model(each, model.layers, model.experts, revision)
            found.append(each)
        except FixpackError as error:
            wrong += error.problems
    if wrong:
        raise UsageError(*wrong)
    return found


def read_plan(path: str, model: Model) -> plan.Plan:
    """Read a plan and hold it against the model.

    :raises UsageError: if it cannot be used.
    """
    with problems(path):
        found = plan.parse_plan(counts.read_json(path), path)
    if tuple(found.hot) != model.layers or found.experts != model.experts:
        message = f"the plan has {len(found.hot)} layers of {found.experts} experts, not those of {model.name}"
        raise UsageError(Problem("bad_input", message, file=path, hint="name the model's config.json with --config"))
    return found


def read_model(path: str) -> Model:
    """The expert shapes from a model's config.json; the built-in model for "".

    :raises UsageError: if a field is missing or makes no sense.
    """
    if not path:
        return MIMO
    with problems(path):
        document = counts.read_json(path)
    body = document.get("text_config", document) if isinstance(document, dict) else None
    if not isinstance(body, dict):
        raise UsageError(Problem("bad_config", "expected an object", file=path))

    def number(*names: str, default: int = 0, low: int = 1, high: int = LARGEST_SIZE) -> int:
        name = next((each for each in names if each in body), "")
        value = body.get(name, default)
        if type(value) is not int or not low <= value <= high:
            message = f"{name or ' or '.join(names)} is {value!r:.40}, not a number from {low} to {high:,}"
            raise UsageError(Problem("bad_config", message, file=path, hint="is it a mixture-of-experts model?"))
        return value

    depth = number("num_hidden_layers", high=MOST_LAYERS)
    every = body.get("moe_layer_freq", 1)
    if isinstance(every, list) and len(every) >= depth and all(each in (0, 1) for each in every):
        layers = tuple(layer for layer in range(depth) if every[layer])
    elif every == 1:
        layers = tuple(range(number("first_k_dense_replace", low=0, high=MOST_LAYERS), depth))
    else:
        raise UsageError(Problem("bad_config", f"moe_layer_freq is {every!r:.60}, not 0 or 1 per layer", file=path))
    if not layers:
        raise UsageError(Problem("bad_config", "no layer has experts", file=path))
    return Model(
        str(document.get("_name_or_path") or os.path.basename(os.path.dirname(os.path.abspath(path)))),
        layers,
        number("n_routed_experts", "num_experts", "num_local_experts", high=MOST_EXPERTS),
        number("hidden_size"),
        number("moe_intermediate_size", "intermediate_size"),
        number("num_experts_per_tok", high=MOST_EXPERTS),
        number("max_position_embeddings", default=1),
    )


def provenance(paths: Sequence[str]) -> list[dict[str, str]]:
    """Name and sha256 of files, for a plan's "meta"."""
    found = []
    for path in paths:
        with problems(path), open(path, "rb") as file:
            found.append({"name": os.path.basename(path), "sha256": hashlib.sha256(file.read()).hexdigest()})
    return found


def write(path: str, data: bytes) -> None:
    """Write a file in one step.

    :raises UsageError: if that cannot be done; what was there stays.
    """
    from fixpack.durable import replace

    try:
        replace(path, data)
    except OSError as error:
        message = f"cannot be written: {error.strerror or error}"
        raise UsageError(Problem("io_error", message, file=path)) from error


def as_bytes(document: Any) -> bytes:
    """A plan or counts as a file: one layer a line, so that two of them can be compared by eye."""
    import json

    def text(value: Any, depth: int) -> str:
        if isinstance(value, dict) and depth < 4 and value:
            pad = " " * (depth + 1)
            rows = ",\n".join(f"{pad}{json.dumps(str(key))}: {text(each, depth + 1)}" for key, each in value.items())
            return f"{{\n{rows}\n{' ' * depth}}}"
        return json.dumps(value, allow_nan=False)

    return (text(document, 0) + "\n").encode()
