"""The reference page: every command from the parsers themselves, exit codes, and the formats from their schemas."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from fixpack import cli
from fixpack.markdown import code, prose, table

#: exit code -> what it says, whatever the command
EXIT_CODES = {
    0: "applied, confirmed, or clean",
    1: "the target does not match, or there is a finding; a command that writes has changed nothing",
    2: "wrong usage, or an invalid registry",
    3: "internal error; a log file is named",
    130: "interrupted; a transaction that was under way was finished or undone first",
}

FORMATS = {
    "fix": "fixes/<id>.yaml",
    "anchors": "anchors/<distribution>/<release>.yaml",
    "profile": "profiles/<profile>.yaml",
    "receipt": "fixpack.json in a dist-info folder",
}


def reference_page() -> str:
    """Commands, exit codes and formats."""
    parts = [
        "# Reference",
        "In an image or a checkout without an installed `fixpack`: `python -m fixpack`, with the checkout as "
        "`PYTHONPATH`. `apply_all.py` is `fixpack apply`.",
        "## Exit codes",
        table(["code", "meaning"], [[code(str(number)), prose(text)] for number, text in EXIT_CODES.items()]),
        "Finer causes are the reason codes in square brackets at the end of each message, and in reports for machines; "
        "[what it refuses, and why](refusals.md) explains them.",
        "## Commands",
        "Each prints its own help with `--help`.",
    ]
    for verb, (module, text) in cli.VERBS.items():
        parser = argparse.ArgumentParser(prog=f"fixpack {verb}", description=text, add_help=False)
        import_module(f"fixpack.cli.{module}").configure(parser)
        parts += _command(parser, 3)
    parts += ["## Formats", "Unknown keys, duplicate keys and wrong types are refused. Keys in brackets are optional."]
    for kind, schema in schemas().items():
        parts += _format(kind, schema)
    return "\n\n".join(parts) + "\n"


def schemas() -> dict[str, Any]:
    """The JSON Schemas of this engine, by kind."""
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "schemas")
    found = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            found[name.removesuffix(".schema.json")] = json.load(file)
    known = [kind for kind in FORMATS if kind in found]
    return {kind: found[kind] for kind in (*known, *(kind for kind in found if kind not in FORMATS))}


# -- commands ---------------------------------------------------------------------------------------------------------


def _command(parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    """A heading, what it does, its arguments; then its own commands."""
    yield f"{'#' * level} {prose(parser.prog)}"
    if parser.description:
        yield f"{prose(parser.description[:1].upper() + parser.description[1:]).rstrip('.')}."
    rows, inner = [], []
    for action in parser._actions:  # argparse has no public way to list them
        if isinstance(action, argparse._SubParsersAction):
            inner = list(action.choices.items())
            helps = {each.dest: each.help or "" for each in action._choices_actions}
        elif action.help != argparse.SUPPRESS and "--help" not in action.option_strings:
            rows.append([", ".join(_names(action)), prose(_help(action, parser))])
    if rows:
        yield table(["argument", "meaning"], rows)
    elif not inner:
        yield "It takes no arguments."
    for name, sub in inner:
        sub.description = sub.description or helps.get(name, "")
        yield from _command(sub, level + 1)


def _names(action: argparse.Action) -> Iterator[str]:
    """How an argument is spelled."""
    metavar = action.metavar or (
        f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest.upper().replace("-", "_")
    )
    value = metavar if isinstance(metavar, str) else " ".join(str(each) for each in metavar)
    if not action.option_strings:
        more = {"*": f"[{value} …]", "+": f"{value} …", "?": f"[{value}]"}
        yield _cell(more.get(str(action.nargs), value))
        return
    for option in action.option_strings:
        yield _cell(option if action.nargs == 0 else f"{option} {value}")


def _cell(text: str) -> str:
    """A code span for a table: there, a bar ends the cell even in code."""
    return code(text).replace("|", "\\|")


def _help(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    """Its help; a default that it names is filled in."""
    text = action.help or ""
    repeat = " (may be repeated)" if type(action).__name__ == "_AppendAction" and "repeat" not in text else ""
    need = " (required)" if action.required and action.option_strings else ""
    return text % {**vars(action), "prog": parser.prog} + repeat + need


# -- formats ----------------------------------------------------------------------------------------------------------


def _format(kind: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """One kind of file."""
    yield f"### {prose(schema.get('title', kind))}"
    if schema.get("description"):
        yield prose(schema["description"])
    if kind in FORMATS:
        yield f"{code(FORMATS[kind])}; the schema: {code(f'fixpack schema {kind}')}."
    rows = [
        [_cell(path) if needed else f"[{_cell(path)}]", prose(what), prose(text)]
        for path, needed, what, text in _keys(schema, schema, "")
    ]
    yield table(["key", "type", "meaning"], rows)


def _keys(schema: Mapping[str, Any], node: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, bool, str, str]]:
    """(path, required, type, description) of every key below a schema's node."""
    required = node.get("required", ())
    for name, value in node.get("properties", {}).items():
        yield from _key(schema, value, prefix + name, name in required)
    extra = node.get("additionalProperties")
    if isinstance(extra, Mapping) and extra:
        yield from _key(schema, extra, f"{prefix}<name>", True)
    for name, value in node.get("patternProperties", {}).items():
        yield from _key(schema, value, f"{prefix}<{name}>", True)


def _key(schema: Mapping[str, Any], value: Any, path: str, needed: bool) -> Iterator[tuple[str, bool, str, str]]:
    node = _resolved(schema, value)
    yield path, needed, _type(schema, node), node.get("description", "")
    yield from _keys(schema, node, f"{path}.")
    if isinstance(node.get("items"), Mapping):
        yield from _keys(schema, _resolved(schema, node["items"]), f"{path}[].")


def _resolved(schema: Mapping[str, Any], value: Mapping[str, Any]) -> Mapping[str, Any]:
    """A node with its reference into the schema put in; the node's own words win."""
    name = str(value.get("$ref", "")).removeprefix("#/$defs/")
    return {**schema["$defs"][name], **value} if name in schema.get("$defs", {}) else value


def _type(schema: Mapping[str, Any], node: Mapping[str, Any]) -> str:
    if "enum" in node:
        return "one of " + ", ".join(json.dumps(each).strip('"') for each in node["enum"])
    if "const" in node:
        return json.dumps(node["const"]).strip('"')
    kind = node.get("type", "any")
    if kind == "array" and isinstance(node.get("items"), Mapping):
        return f"list of {_type(schema, _resolved(schema, node['items']))}"
    names = {"object": "mapping", "array": "list", "boolean": "true or false"}
    kinds = kind if isinstance(kind, list) else [kind]
    return " or ".join(str(names.get(each, each)) for each in kinds)
