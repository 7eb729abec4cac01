"""The options of ``vllm serve`` as each pinned release declares them, taken from its own parser.

``python tests/harness/serve_options.py`` writes ``fixpack/serve_options.json`` from the cached sources: names, kinds
and numbers of values, one line each.  ``--compare`` writes nothing and exits 1 if the file is not what they give.

``ask`` runs this file in a fresh interpreter that imports one release, also to see what its parser makes of command
lines.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent.parent
DATA = REPO / "fixpack" / "serve_options.json"
HERE = Path(__file__).resolve().parent

#: where the releases keep their parser
MODULES = (
    "vllm.entrypoints.openai.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.common.cli_args",
)


# -- in the release's interpreter -------------------------------------------------------------------------------------


def parsers() -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """The release's own parsers, on the CPU platform: that of the server alone, and that of ``vllm`` with ``serve``."""
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    for name in MODULES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
        else:
            top = FlexibleArgumentParser(prog="vllm")
            module.make_arg_parser(top.add_subparsers(dest="subparser").add_parser("serve"))
            return module.make_arg_parser(FlexibleArgumentParser(prog="vllm serve")), top
    raise SystemExit(f"no parser of `vllm serve` in any of {', '.join(MODULES)}")


def kind(action: argparse.Action) -> str:
    """What the text of a value has to be; a final "?" where "None" and "" mean no value."""
    name = type(action).__name__
    if name in ("_StoreTrueAction", "_HelpAction"):
        return "flag"
    if name in ("BooleanOptionalAction", "EnableDisableAction"):
        return "bool"
    return _of_type(action.type)


def _of_type(convert: Any) -> str:
    if convert is None:
        return "text"
    name = getattr(convert, "__qualname__", "")
    inner = [cell.cell_contents for cell in getattr(convert, "__closure__", None) or ()]
    if name.endswith("._optional_type"):
        return _of_type(next(each for each in inner if callable(each))).removesuffix("?") + "?"
    if name.endswith("._parse_type"):
        return _of_type(next(each for each in inner if callable(each)))
    if name.endswith("parse_dataclass"):
        return "config"
    if name.endswith("add_cli_args.<locals>.<lambda>"):
        return "folded" if convert("A-b") == "a_b" else "text"
    known = {
        "str": "text",
        "int": "int",
        "float": "float",
        "loads": "json",
        "human_readable_int": "size",
        "human_readable_int_or_auto": "size-or-auto",
        "union_dict_and_str": "json-or-text",
    }
    return known.get(name, "text")


def describe(found: argparse.ArgumentParser) -> dict[str, dict[str, Any]]:
    """Every option: its spellings, the name of its value, its kind, its number of values and choices."""
    spellings: dict[int, list[str]] = {}
    for spelling, action in found._option_string_actions.items():
        spellings.setdefault(id(action), []).append(spelling)
    options = {}
    for action in found._actions:
        if not action.option_strings:
            continue
        shown = action.option_strings
        names = sorted(spellings[id(action)], key=lambda each: (not each.startswith("--"), each not in shown))
        made: dict[str, Any] = {"name": action.dest, "kind": kind(action)}
        if len(names) > 1:
            made["also"] = names[1:]
        if made["kind"] == "bool":
            made["off"] = sorted(each for each in names if not _turns_on(action, each))
            if made.get("also") == made["off"] == [f"--no-{names[0][2:]}"]:
                del made["also"], made["off"]  # the usual pair
        if made["kind"] in ("int", "float", "size", "folded", "text") and isinstance(action.default, int | float | str):
            made["default"] = action.default if isinstance(action.default, int | float) else str(action.default)
        if made["kind"] == "bool" and isinstance(action.default, bool):
            made["default"] = action.default
        if action.nargs not in (None, 0):
            made["nargs"] = action.nargs
        if type(action).__name__ == "_AppendAction":
            made["append"] = True
        choices = [each for each in action.choices or () if isinstance(each, str | int)]
        if choices and not isinstance(choices[0], bool):
            made["choices"] = choices if isinstance(choices[0], int) else sorted(choices)
        options[names[0]] = made
    return options


def _turns_on(action: argparse.Action, spelling: str) -> bool:
    space = argparse.Namespace()
    action(argparse.ArgumentParser(), space, [], spelling)
    return bool(getattr(space, action.dest))


def keeps_false(found: Any) -> bool:
    """Whether a configuration file's "x: false" becomes ``--no-x``; otherwise it is dropped without a word."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write("enable-prefix-caching: false\n")
        file.flush()
        return bool(found.load_config_file(file.name))


def inner() -> None:
    """Print the release's options and variables; for each command line on stdin, what its parser makes of it."""
    import vllm.envs

    alone, top = parsers()
    defaults = vars(alone.parse_args([]))
    parsed: list[Any] = []
    for line in map(json.loads, sys.stdin.read().splitlines()):
        try:
            space = vars((top if line[:1] == ["serve"] else alone).parse_args(line))
        except SystemExit:
            parsed.append(None)
        except Exception as error:
            parsed.append(f"{type(error).__name__}: {error}")
        else:
            parsed.append({name: repr(each) for name, each in space.items() if repr(each) != repr(defaults.get(name))})
    body = {
        "options": describe(alone),
        "variables": sorted(vllm.envs.environment_variables),
        "keeps_false": keeps_false(alone),
        "parsed": parsed,
    }
    print("\n" + json.dumps(body))


# -- outside ----------------------------------------------------------------------------------------------------------


def ask(tree: Path | str, cache: Path | str, lines: list[list[str]] | None = None) -> dict[str, Any]:
    """Options, variables and parsed command lines of one release.

    In: the folder that holds ``vllm/``, a cache folder, command lines.  Raises RuntimeError if it cannot.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM", "PYTHON", "FIXPACK"))}
    env = {
        **kept,
        "PYTHONPATH": os.pathsep.join((str(HERE / "stubs-common"), str(tree))),
        "PYTHONPYCACHEPREFIX": str(Path(cache) / "pycache"),
        "PYTHONNOUSERSITE": "1",
        "VLLM_PLUGINS": "",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CACHE_ROOT": str(Path(cache) / "vllm"),
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [sys.executable, __file__, "--inner"],
        input="\n".join(json.dumps(line) for line in lines or []),
        env=env,
        cwd=cache,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{tree}: its parser cannot be made:\n{done.stderr[-3000:]}")
    body: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return body


def merge(releases: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """One table for all releases: what is the same in several is there once, with their names."""
    options: dict[str, list[dict[str, Any]]] = {}
    variables: dict[str, list[str]] = {}
    for release, body in releases.items():
        for name, made in body["options"].items():
            twin = next((each for each in options.get(name, []) if {**each, "in": 0} == {**made, "in": 0}), None)
            if twin:
                twin["in"].append(release)
            else:
                options.setdefault(name, []).append({**made, "in": [release]})
        for name in body["variables"]:
            variables.setdefault(name, []).append(release)
    keeping = [release for release, body in releases.items() if body["keeps_false"]]
    return {"releases": list(releases), "keeps-false": keeping, "options": options, "variables": variables}


def dump(table: dict[str, Any]) -> str:
    """The file's text: one option, or one set of releases, a line."""
    every = table["releases"]

    def short(found: list[str]) -> list[str] | str:
        return "all" if found == every else found

    lines = ['{"schema": "fixpack.serve-options/1",', f'"releases": {json.dumps(every)},']
    lines += [f'"keeps-false": {json.dumps(table["keeps-false"])},', '"options": {']
    rows = []
    for name, forms in sorted(table["options"].items()):
        forms = [{**form, "in": short(form["in"])} for form in forms]
        rows.append(f"{json.dumps(name)}: {json.dumps(forms)}")
    lines.append(",\n".join(rows) + "},")
    groups: dict[str, list[str]] = {}
    for name, found in table["variables"].items():
        groups.setdefault(json.dumps(short(found)), []).append(name)
    rows = [f'{{"in": {found}, "names": {json.dumps(sorted(names))}}}' for found, names in sorted(groups.items())]
    lines += ['"variables": [', ",\n".join(rows) + "]}"]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the data file, or compare it; returns the exit code."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--compare", action="store_true")
    options.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.inner:
        inner()
        return 0
    sys.path.insert(0, str(REPO))
    from fixpack import cache, registry, sources

    found = {}
    for release in registry.load_releases(str(REPO)).values():
        if release.distribution == "vllm":
            print(release.ref, file=sys.stderr)
            folder = Path(cache.cache_dir()) / "serve-options"
            folder.mkdir(parents=True, exist_ok=True)
            found[release.name] = ask(sources.tree(release), folder)
    text = dump(merge(found))
    if args.compare:
        return int(DATA.read_text(encoding="utf-8") != text)
    DATA.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
