"""YAML with nothing left open: one document, no tags, no aliases, no duplicate keys, every value with its line.

The reader composes nodes with PyYAML's safe loader (the C one where it is there) and never constructs
objects, so no tag can run code and no alias can grow a bomb.  ``Reader`` then takes typed fields out
of a mapping, collects every problem with file and line, and refuses the keys that nobody asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import yaml

from fixpack.errors import Problem
from fixpack.text import did_you_mean

#: Registry files are small; a larger one is a mistake or an attack.
MAX_BYTES = 1 << 20
MAX_DEPTH = 12

_SCALARS = {
    "tag:yaml.org,2002:str": str,
    "tag:yaml.org,2002:int": int,
    "tag:yaml.org,2002:bool": bool,
}
_MERGE = "tag:yaml.org,2002:merge"
_BRACKET = re.compile(r"[\[\]{}]")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff]")


class Value:
    """A scalar, sequence or mapping and the line it starts on."""

    __slots__ = ("data", "keys", "line")

    def __init__(self, data: object, line: int, keys: dict[str, int] | None = None) -> None:
        self.data = data  # str | int | bool | None | list[Value] | dict[str, Value]
        self.line = line
        self.keys = keys or {}  # line of each key of a mapping


def parse(data: bytes, file: str) -> tuple[Value | None, list[Problem]]:
    """Read one YAML document.

    :param data: the file's bytes, UTF-8.
    :param file: its name, for the problems.
    :returns: the root value (None if it cannot be read at all) and the problems found.
    """

    def bad(message: str, line: int = 0) -> tuple[None, list[Problem]]:
        return None, [Problem("yaml_invalid", message, file=file, line=line)]

    if len(data) > MAX_BYTES:
        return bad(f"the file has {len(data)} bytes; a registry file has at most {MAX_BYTES}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        return bad(f"not UTF-8: {error.reason} at byte {error.start}", data.count(b"\n", 0, error.start) + 1)
    control = _CONTROL.search(text)
    if control:
        char = control.group()
        line = text.count("\n", 0, control.start()) + 1
        if char == "\r":
            return bad("a carriage return is not allowed in a registry file; use LF line ends", line)
        return bad(f"the character U+{ord(char):04X} is not allowed in a registry file", line)
    line = _too_deep(text)
    if line:  # PyYAML 6.0.3's C parser would end the process
        return bad(f"nested deeper than {MAX_DEPTH} levels, or a line of more than 8000 characters", line)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        node = yaml.compose(text, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 0
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        return bad(f"not valid YAML: {problem}", line)
    except RecursionError:
        return bad("nested too deeply")
    if node is None:
        return bad("the file is empty")
    problems: list[Problem] = []
    value = _convert(node, file, problems, set(), 0)
    return value, problems


def _too_deep(text: str) -> int:
    """The line (1-based) on which brackets or dashes nest beyond what a parser's stack bears; 0 if none."""
    depth = 0
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > 8000:  # "- - - …" nests without brackets
            return number
        for bracket in _BRACKET.findall(line):
            depth = max(depth + (1 if bracket in "[{" else -1), 0)
            if depth > 500:
                return number
    return 0


def _convert(node: yaml.Node, file: str, problems: list[Problem], seen: set[int], depth: int) -> Value:
    """A node as a ``Value``; what YAML allows and the registry does not goes to ``problems``."""
    line = node.start_mark.line + 1

    def bad(message: str, at: int = line) -> None:
        problems.append(Problem("yaml_invalid", message, file=file, line=at))

    if id(node) in seen:
        bad("aliases (*name) are not allowed in a registry file")
        return Value(None, line)
    seen.add(id(node))
    if depth > MAX_DEPTH:
        bad(f"nested deeper than {MAX_DEPTH} levels")
        return Value(None, line)
    if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
        mapping: dict[str, Value] = {}
        keys: dict[str, int] = {}
        for key_node, value_node in node.value:
            key_line = key_node.start_mark.line + 1
            if id(key_node) in seen:
                bad("aliases (*name) are not allowed in a registry file", key_line)
                continue
            seen.add(id(key_node))
            if key_node.tag == _MERGE:
                bad("merge keys (<<) are not allowed in a registry file", key_line)
                continue
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != "tag:yaml.org,2002:str":
                bad(f"a key must be a plain string; quote {getattr(key_node, 'value', '')!r}", key_line)
                continue
            key = str(key_node.value)
            if key in mapping:
                bad(f"duplicate key {key!r}, first on line {keys[key]}", key_line)
                continue
            keys[key] = key_line
            mapping[key] = _convert(value_node, file, problems, seen, depth + 1)
        return Value(mapping, line, keys)
    if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
        return Value([_convert(item, file, problems, seen, depth + 1) for item in node.value], line)
    if isinstance(node, yaml.ScalarNode):
        if node.tag == "tag:yaml.org,2002:null":
            return Value(None, line)
        kind = _SCALARS.get(node.tag)
        if kind is str:
            return Value(str(node.value), line)
        if kind is bool:
            return Value(str(node.value).lower() in ("true", "yes", "on"), line)
        if kind is int and re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", node.value):  # 010 would be 8 in YAML 1.1
            return Value(int(node.value), line)
        if kind is int or node.tag in ("tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp"):
            bad(f"{node.value!r} must be quoted to be a string")
            return Value(str(node.value), line)
    bad(f"the tag {node.tag!r} is not allowed in a registry file")
    return Value(None, line)


_KIND_NAMES = {str: "a string", int: "an integer", bool: "true or false", list: "a list", dict: "a mapping"}


class Reader:
    """Typed access to one mapping.  Wrong types and missing keys become problems, defaults are returned."""

    def __init__(self, value: Value, file: str, problems: list[Problem], what: str, fix: str = "") -> None:
        """
        :param value: the mapping; anything else is a problem.
        :param what: how to call it in messages, e.g. "edit 2".
        """
        self.file, self.problems, self.what, self.fix, self.line = file, problems, what, fix, value.line
        if isinstance(value.data, dict):
            self.fields: dict[str, Value] = value.data
        else:
            self.fields = {}
            self.bad(f"{what} must be a mapping", value.line)
        self.keys = value.keys
        self.asked: set[str] = set()

    def bad(self, message: str, line: int = 0, code: str = "registry_invalid", hint: str = "") -> None:
        """Add a problem at ``line`` (the mapping's own line by default)."""
        self.problems.append(Problem(code, message, self.fix, self.file, line or self.line, hint=hint))

    def line_of(self, key: str) -> int:
        """The line of a key, or of the mapping when the key is absent."""
        return self.keys.get(key, self.line)

    def _get(self, key: str, kind: type, required: bool) -> Value | None:
        self.asked.add(key)
        value = self.fields.get(key)
        if value is None:
            if required:
                self.bad(f"{self.what} lacks the key {key!r}")
            return None
        if type(value.data) is not kind:
            found = "nothing" if value.data is None else _KIND_NAMES.get(type(value.data), "something else")
            self.bad(f"{key!r} must be {_KIND_NAMES[kind]}, not {found}", value.line)
            return None
        return value

    def text(self, key: str, default: str | None = None, pattern: str = "", oneof: Iterable[str] = ()) -> str:
        """A non-empty string; ``default`` None makes it required."""
        value = self._get(key, str, default is None)
        if value is None:
            return default or ""
        data = str(value.data)
        choices = tuple(oneof)
        if not data.strip():
            self.bad(f"{key!r} must not be empty", value.line)
        elif pattern and not re.fullmatch(pattern, data):
            self.bad(f"{key!r} is {data!r}, which does not match {pattern}", value.line)
        elif choices and data not in choices:
            self.bad(
                f"{key!r} is {data!r}, not one of {', '.join(choices)}", value.line, hint=did_you_mean(data, choices)
            )
        else:
            return data
        return default or ""

    def integer(self, key: str, default: int | None = None, least: int = 0) -> int:
        """An integer of at least ``least``."""
        value = self._get(key, int, default is None)
        if value is None or not isinstance(value.data, int):
            return default or 0
        if value.data < least:
            self.bad(f"{key!r} is {value.data}, but must be at least {least}", value.line)
        return value.data

    def flag(self, key: str) -> bool:
        """A boolean, false when absent."""
        value = self._get(key, bool, False)
        return bool(value and value.data)

    def texts(self, key: str, required: bool = False, pattern: str = "") -> tuple[str, ...]:
        """A list of distinct strings."""
        found: list[str] = []
        for item in self.items(key, required):
            if not isinstance(item.data, str) or (pattern and not re.fullmatch(pattern, item.data)):
                self.bad(f"{key!r} must hold strings that match {pattern or '.+'}, not {item.data!r}", item.line)
            elif item.data in found:
                self.bad(f"{key!r} names {item.data!r} twice", item.line)
            else:
                found.append(item.data)
        return tuple(found)

    def items(self, key: str, required: bool = False) -> list[Value]:
        """The values of a list, empty when absent."""
        value = self._get(key, list, required)
        return value.data if value and isinstance(value.data, list) else []

    def sub(self, key: str, required: bool = True) -> Reader | None:
        """A nested mapping as a reader."""
        value = self._get(key, dict, required)
        return Reader(value, self.file, self.problems, repr(key), self.fix) if value else None

    def pairs(self, pattern: str = "") -> Iterator[tuple[str, Value]]:
        """All keys of a mapping whose keys are names, and their values."""
        for key, value in self.fields.items():
            self.asked.add(key)
            if pattern and not re.fullmatch(pattern, key):
                self.bad(f"the key {key!r} does not match {pattern}", self.line_of(key))
            yield key, value

    def done(self) -> None:
        """Refuse every key that was not asked for."""
        for key in self.fields:
            if key not in self.asked:
                self.bad(
                    f"{self.what} has the unknown key {key!r}", self.line_of(key), hint=did_you_mean(key, self.asked)
                )
