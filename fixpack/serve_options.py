"""The options of ``vllm serve`` and vLLM's environment variables, per release: facts taken from vLLM's own parser.

The data, ``serve_options.json`` beside this module, is made by ``tests/harness/serve_options.py``.
"""

from __future__ import annotations

import functools
import json
import os
from typing import Any, NamedTuple

from fixpack.errors import Problem, UsageError

Default = bool | int | float | str | None


class Option(NamedTuple):
    """One option of one release."""

    spelling: str  # "--max-model-len": the first long spelling
    name: str  # "max_model_len": as vLLM calls the value
    kind: str  # flag, bool, int, float, size, size-or-auto, text, folded, json, config, json-or-text
    optional: bool  # "None" and "" mean no value
    also: tuple[str, ...]  # other spellings
    off: tuple[str, ...]  # those that turn a bool off
    nargs: str  # "" for one value (or none, for flag and bool), "+", "*" or "?"
    append: bool  # every occurrence counts; otherwise the last one
    choices: tuple[str | int, ...]
    default: Default  # None where it is not a constant


class Table(NamedTuple):
    """The options of one release."""

    release: str
    options: dict[str, Option]  # by name
    spellings: dict[str, Option]
    variables: frozenset[str]
    keeps_false: bool  # a configuration file's "x: false" becomes --no-x, where the parser has that option


def releases() -> tuple[str, ...]:
    """The vLLM releases whose options are known."""
    return tuple(_data()["releases"])


def table(release: str) -> Table:
    """The options of a vLLM release.

    :raises UsageError: if they are not known.
    """
    data = _data()
    if release not in data["releases"]:
        message = f"the options of vLLM {release} are not known"
        hint = "with its source in the cache, run tests/harness/serve_options.py"
        raise UsageError(Problem("unknown_release", message, hint=hint))
    options = {}
    for spelling, forms in data["options"].items():
        form = next((form for form in forms if form["in"] == "all" or release in form["in"]), None)
        if form:
            options[form["name"]] = _option(spelling, form)
    spellings = {each: option for option in options.values() for each in (option.spelling, *option.also)}
    variables = frozenset(
        name for group in data["variables"] if group["in"] == "all" or release in group["in"] for name in group["names"]
    )
    return Table(release, options, spellings, variables, release in data["keeps-false"])


def _option(spelling: str, form: dict[str, Any]) -> Option:
    kind = form["kind"]
    off = form.get("off", [f"--no-{spelling[2:]}"] if kind == "bool" else [])
    return Option(
        spelling,
        form["name"],
        kind.removesuffix("?"),
        kind.endswith("?"),
        tuple(form.get("also", off)),
        tuple(off),
        form.get("nargs", ""),
        form.get("append", False),
        tuple(form.get("choices", ())),
        form.get("default"),
    )


@functools.cache
def _data() -> dict[str, Any]:
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "serve_options.json")
    with open(path, encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found
