"""A configuration file of ``vllm serve --config``, as vLLM turns it into arguments."""

from __future__ import annotations

import json
import os
import stat
from typing import Any

from fixpack.serve_options import Table
from fixpack.serve_values import ValueProblem

MAX_BYTES = 1 << 20
#: an alias of aliases grows without end when it is written out as arguments
MAX_ALIASES = 20


def config_arguments(path: str, table: Table | None) -> tuple[list[str], list[str]]:
    """The arguments that a file stands for, and the keys whose "false" vLLM drops.

    :param table: the options of the parser that reads it; None for ``vllm serve``, whose reader knows none of them.
    :raises ValueProblem: if vLLM would refuse the file.
    """
    if path.rpartition(".")[2] not in ("yaml", "yml"):
        raise ValueProblem(f"--config {path}: its name has to end in .yaml or .yml")
    found = _load(path)
    try:
        return _arguments(found, table)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:  # a date, a set, a mapping in itself, …
        message = f"--config {path}: it holds what vLLM cannot write out as an argument: {error}"
        raise ValueProblem(message) from None


def _arguments(found: dict[str, Any], table: Table | None) -> tuple[list[str], list[str]]:
    arguments: list[str] = []
    dropped: list[str] = []
    for key, value in found.items():
        if isinstance(value, bool):
            if value:
                arguments.append(f"--{key}")
            elif table and table.keeps_false and f"--no-{key}" in table.spellings:
                arguments.append(f"--no-{key}")
            else:
                dropped.append(key)
        elif isinstance(value, list):
            arguments += [f"--{key}", *map(str, value)] if value else []
        elif isinstance(value, dict):
            arguments += [f"--{key}", json.dumps(value)]
        else:
            arguments += [f"--{key}", str(value)]
    return arguments, dropped


def _load(path: str) -> dict[str, Any]:
    import yaml

    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ValueProblem(f"--config {path}: it is not an ordinary file")
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueProblem(f"--config {path}: it has more than {MAX_BYTES} bytes")
        if sum(isinstance(event, yaml.AliasEvent) for event in yaml.parse(data, Loader=yaml.SafeLoader)) > MAX_ALIASES:
            raise ValueProblem(f"--config {path}: it has more than {MAX_ALIASES} aliases")
        found = yaml.safe_load(data)
    except ValueProblem:
        raise
    except OSError as error:
        raise ValueProblem(f"--config {path}: it cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, LookupError, AttributeError) as error:
        reason = str(error).partition("\n")[0]  # the last three: a tag such as !!bool in front of another text
        raise ValueProblem(f"--config {path}: it is no YAML: {reason}") from None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ValueProblem(f"--config {path}: it is no mapping of options to values")
    return found
