"""What vLLM makes of an option's text: numbers with k and M, JSON, dotted keys of JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from fixpack.serve_options import Option

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
#: a number with a suffix outside of JSON's texts; vLLM takes them inside its configuration objects
_BARE_SIZE = re.compile(r'"(?:[^"\\]|\\.)*"|\b\d+(?:\.\d+)?[kKmMgGtT]\b')
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
#: no option of a server needs more; Python itself stops at 4,300 digits and about 1,000 levels, in many places
MAX_DIGITS = 20
MAX_DEPTH = 50


class ValueProblem(ValueError):
    """A text that vLLM refuses; the message says what it has to be."""


def size(text: str) -> int:
    """ "128k" is 128,000, "128K" is 131,072; fractions with small letters only.

    :raises ValueProblem: if it is no whole number, or too large to mean one.
    """
    _bound_digits(text)
    match = _SIZE.fullmatch(text.strip())
    try:
        if match is None:
            return int(text)
        number, suffix = match.groups()
        power = _POWERS[suffix.lower()]
        return int(float(number) * 1000**power) if suffix.islower() else int(number) * 1024**power
    except ValueError:
        hint = f"; {suffix} counts in 1024s and takes no fraction" if match and "." in text else ""
        raise ValueProblem(f"{text!r} is no whole number (128000, 128k, 128K){hint}") from None


def _bound_digits(text: str) -> None:
    digits = sum(each.isdigit() for each in text)
    if digits > MAX_DIGITS:
        raise ValueProblem(f"{text[:40]!r}… has {digits} digits; at most {MAX_DIGITS} are read")


def convert(option: Option, texts: Sequence[str]) -> Any:
    """The value of an option that was given these texts: one, or a list where it takes several.

    :raises ValueProblem: if vLLM would refuse one of them.
    """
    values = [_convert(option, text) for text in texts]
    if option.nargs in ("+", "*"):
        return values
    return values[0] if values else True  # "?" without a value


def _convert(option: Option, text: str) -> Any:
    if option.optional and text in ("", "None"):
        return None
    value = _of_kind(option.kind, text)
    if option.choices and value not in option.choices:
        known = ", ".join(map(str, option.choices))
        raise ValueProblem(f"{text!r} is not one of {known}")
    return value


def _of_kind(kind: str, text: str) -> Any:
    try:
        if kind == "int":
            _bound_digits(text)
            return int(text)
        if kind == "float":
            return float(text)
    except ValueProblem:
        raise
    except ValueError:
        raise ValueProblem(f"{text!r} is no {'whole ' if kind == 'int' else ''}number") from None
    if kind == "size":
        return size(text)
    if kind == "size-or-auto":
        return None if text.strip().lower() in ("-1", "auto") else size(text)
    if kind == "folded":
        return text.lower().replace("-", "_")
    if kind == "config":
        return _json(_BARE_SIZE.sub(lambda found: found[0] if found[0][0] == '"' else str(size(found[0])), text))
    if kind == "json" or (kind == "json-or-text" and re.fullmatch(r"(?s)\s*\{.*\}\s*", text)):
        return _json(text)
    return text


def _json(text: str) -> Any:
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueProblem(f"{text[:80]!r} nests too deeply") from None
    except ValueError as error:
        raise ValueProblem(f"{text[:80]!r} is no JSON: {error}") from None
    _bound_depth(found, text)
    return found


def _bound_depth(value: Any, text: str) -> None:
    """Refuse what nests so deeply that Python cannot write it out again."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [inner for each in level for inner in _parts(each)]
        if not level:
            return
    raise ValueProblem(f"{text[:80]!r} nests more than {MAX_DEPTH} levels deep")


def _parts(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def merge_dotted(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Put ``--config.a.b c`` together: the arguments with one JSON value for each such option, and keys given twice.

    :raises ValueProblem: if the last one lacks its value, or one nests too deeply.
    """
    rest: list[str] = []
    objects: dict[str, dict[str, Any]] = {}
    twice: list[str] = []
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        position += 1
        key, equals, text = argument.partition("=")
        if not argument.startswith("-") or "." not in key:
            rest.append(argument)
            continue
        if not equals:
            if position == len(arguments):
                raise ValueProblem(f"{key} lacks its value")
            text = arguments[position]
            position += 1
        value: Any = text
        if key.endswith("+"):
            key, value = key[:-1], text.split(",")
        else:
            value = _loose(text)
        option, *path = key.split(".")
        if len(path) > MAX_DEPTH:
            raise ValueProblem(f"{key[:80]!r} nests more than {MAX_DEPTH} levels deep")
        for name in reversed(path):
            value = {name: value}
        twice += [f"{option}.{each}" for each in _update(objects.setdefault(option, {}), value)]
    for option, found in objects.items():
        rest += [option, json.dumps(found)]
    return rest, twice


def _loose(text: str) -> Any:
    """JSON if it is, else a number with a suffix, else the text."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        try:
            return size(text)
        except ValueProblem:
            return text
    _bound_depth(found, text)
    return found


def _update(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Merge one mapping into another; the keys that were there already."""
    twice: list[str] = []
    for key, value in new.items():
        there = old.get(key)
        if isinstance(value, dict) and isinstance(there, dict):
            twice += [f"{key}.{each}" for each in _update(there, value)]
        elif isinstance(value, list) and isinstance(there, list):
            old[key] = there + value
        else:
            twice += [key] if key in old else []
            old[key] = value
    return twice
