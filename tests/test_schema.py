"""The JSON Schemas that editors use and the strict loader that decides say yes and no to the same files."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from fixpack import registry
from fixpack.errors import RegistryError

ROOT = Path(__file__).resolve().parent.parent
SCHEMAS = ROOT / "fixpack" / "schemas"
KINDS = ("fix", "anchors", "profile", "launch")
FILES = {
    "fix": "fixes/rows.yaml",
    "anchors": "anchors/demo-dist/v1.0.0.yaml",
    "profile": "profiles/demo-v1.yaml",
    "launch": "launch/demo.yaml",
}

GOOD: dict[str, dict[str, Any]] = {
    "fix": {
        "id": "rows",
        "revision": 2,
        "title": "count rows",
        "symptom": "a row is lost",
        "cause": "an index is off by one",
        "origin": {"kind": "own"},
        "upstream": {"status": "not-reported"},
        "retires-when": "upstream counts rows",
        "edits": {
            "demo-dist": [
                {"op": "add-file", "path": "demo/_fixpack/rows.py", "code": "rows.py"},
                {"anchor": "count", "op": "insert-before", "code": "call.py"},
                {"anchor": "total", "op": "delete"},
            ]
        },
        "proof": {"test": "tests/fixes/test_rows.py", "stock": {"test_rows": "row .* lost"}},
    },
    "anchors": {
        "distribution": "demo-dist",
        "release": "v1.0.0",
        "version": "1.0.0",
        "package": "demo",
        "commit": "a" * 40,
        "files": {
            "demo/rows.py": {
                "sha256": "b" * 64,
                "anchors": {
                    "count": {"within": "Table.count", "text": "rows = 1"},
                    "total": {"text": "total = 0\nother = 1\n"},
                },
            }
        },
    },
    "profile": {
        "profile": "demo-v1",
        "hardware": "none",
        "releases": {"demo-dist": "v1.0.0"},
        "fixes": ["rows"],
        "launch": ["demo"],
    },
    "launch": {
        "launch": "demo",
        "about": "a demonstration",
        "sources": {"own": "our own words"},
        "models": {"small": {"about": "a small model", "match": "(?i)small"}},
        "variables": {"ROWS_GIB": {"kind": "number", "unset": "1"}},
        "machine": {"resource": "example.com/gpu", "count": 1},
        "rules": [
            {"rule": "mode", "required": "ROWS_MODE", "value": "fast", "reason": "it is quicker", "source": "own"},
            {
                "rule": "memory",
                "holds": "ROWS_GIB <= 8",
                "models": ["small"],
                "reason": "there is no more",
                "source": "own",
                "remedy": "lower ROWS_GIB",
            },
        ],
    },
}


HAS = {"url": "https://example.org/pull/1", "reason": "it counts rows", "anchor": "count"}
BAD_HAS: dict[str, Any] = {
    "as a list": ["demo-dist@v2.0.0"],
    "without a release": {"demo-dist": HAS},
    "without a reason": {"demo-dist@v2.0.0": {"anchor": "count"}},
    "without an anchor": {"demo-dist@v2.0.0": {"reason": "it counts rows"}},
    "over http": {"demo-dist@v2.0.0": {**HAS, "url": "http://example.org"}},
    "with an unknown key": {"demo-dist@v2.0.0": {**HAS, "tests": []}},
    "with no test's name": {"demo-dist@v2.0.0": {**HAS, "green": ["rows"]}},
    "with a test twice": {"demo-dist@v2.0.0": {**HAS, "green": ["test_rows", "test_rows"]}},
}


def upstream_has_a_part(document: dict[str, Any]) -> None:
    """One of two tests is green on the release of the profile."""
    document["proof"]["stock"]["test_more"] = "more"
    document["upstream-has"] = {"demo-dist@v1.0.0": {**HAS, "green": ["test_rows"]}}


def archive(commit: str) -> Callable[[dict[str, Any]], None]:
    """A release whose archive is pinned, with this commit."""

    def change(document: dict[str, Any]) -> None:
        document["commit"] = commit
        document["sdist"] = {"filename": "demo-1.0.0.tar.gz", "sha256": "d" * 64}

    return change


def put(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    """Set the value at a path of keys and indices."""

    def change(document: dict[str, Any]) -> None:
        place: Any = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


def drop(*path: str | int) -> Callable[[dict[str, Any]], None]:
    """Remove the key at a path."""

    def change(document: dict[str, Any]) -> None:
        place: Any = document
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]

    return change


EDITS = ("edits", "demo-dist")
OLD_CALL = {"anchor": "count", "op": "insert-before", "sha256": "f" * 64}
PAST = {
    "revision": 1,
    "reason": "it counted twice",
    "edits": {
        "demo-dist": [
            OLD_CALL,
            {"anchor": "total", "op": "delete"},
            {"op": "add-file", "path": "demo/_fixpack/rows.py", "sha256": "e" * 64},
        ]
    },
}
BAD_HISTORY: dict[str, Any] = {
    "a string": "r1",
    "no reason": {key: value for key, value in PAST.items() if key != "reason"},
    "no revision": {key: value for key, value in PAST.items() if key != "revision"},
    "an unknown key": {**PAST, "date": "today"},
    "revision zero": {**PAST, "revision": 0},
    "no edits": {**PAST, "edits": {}},
    "an empty list": {**PAST, "edits": {"demo-dist": []}},
    "an odd release": {**PAST, "edits": {"demo-dist@": [OLD_CALL]}},
    "a short hash": {**PAST, "edits": {"demo-dist": [{**OLD_CALL, "sha256": "f"}]}},
    "no hash": {**PAST, "edits": {"demo-dist": [{"anchor": "count", "op": "replace"}]}},
    "a delete with a hash": {**PAST, "edits": {"demo-dist": [{**OLD_CALL, "op": "delete"}]}},
    "an unknown op": {**PAST, "edits": {"demo-dist": [{**OLD_CALL, "op": "swap"}]}},
    "a new file without path": {**PAST, "edits": {"demo-dist": [{"op": "add-file", "sha256": "f" * 64}]}},
    "an escaping path": {
        **PAST,
        "edits": {"demo-dist": [{"op": "add-file", "path": "demo/../x.py", "sha256": "f" * 64}]},
    },
}
FILE = ("files", "demo/rows.py")

BAD: dict[str, list[tuple[str, Callable[[dict[str, Any]], None]]]] = {
    "fix": [
        *((f"no {key}", drop(key)) for key in GOOD["fix"]),
        ("unknown key", put("titel", value="x")),
        ("unknown key in origin", put("origin", "author", value="x")),
        ("unknown key in upstream", put("upstream", "pr", value="x")),
        ("unknown key in edit", put(*EDITS, 0, "count", value=1)),
        ("unknown key in proof", put("proof", "fixed", value={})),
        ("id with capitals", put("id", value="Rows")),
        ("id with a slash", put("id", value="../rows")),
        ("id is a number", put("id", value=7)),
        ("revision zero", put("revision", value=0)),
        ("revision is a string", put("revision", value="1")),
        ("revision is true", put("revision", value=True)),
        ("empty title", put("title", value="")),
        ("blank symptom", put("symptom", value="  ")),
        ("cause is a list", put("cause", value=["x"])),
        ("limits is null", put("limits", value=None)),
        ("origin is a string", put("origin", value="own")),
        ("origin without kind", put("origin", value={})),
        ("unknown origin", put("origin", "kind", value="fork")),
        ("backport of nothing", put("origin", value={"kind": "backport"})),
        ("short commit", put("origin", value={"kind": "backport", "commit": "abc1234"})),
        ("plain http", put("origin", value={"kind": "upstream-pr", "url": "http://example.org/1"})),
        ("unknown status", put("upstream", "status", value="merged")),
        ("denied without reason", put("upstream", "status", value="denied")),
        ("requires is a string", put("requires", value="other")),
        ("requires twice", put("requires", value=["other", "other"])),
        ("requires no id", put("requires", value=["Other Fix"])),
        ("requires-with is a list", put("requires-with", value=["other"])),
        ("requires-with an odd distribution", put("requires-with", value={"Demo Dist": ["other"]})),
        ("requires-with a string", put("requires-with", value={"demo-dist": "other"})),
        ("requires-with nothing", put("requires-with", value={"demo-dist": []})),
        ("requires-with twice", put("requires-with", value={"demo-dist": ["other", "other"]})),
        ("requires-with no id", put("requires-with", value={"demo-dist": ["Other Fix"]})),
        ("no edits at all", put("edits", value={})),
        ("edits is a list", put("edits", value=[])),
        ("empty list of edits", put(*EDITS, value=[])),
        ("odd distribution", put("edits", "Demo Dist", value=[{"anchor": "count", "op": "delete"}])),
        ("edit is a string", put(*EDITS, 0, value="delete")),
        ("no op", drop(*EDITS, 1, "op")),
        ("unknown op", put(*EDITS, 1, "op", value="substitute")),
        ("insert without anchor", drop(*EDITS, 1, "anchor")),
        ("insert without code", drop(*EDITS, 1, "code")),
        ("insert with path", put(*EDITS, 1, "path", value="demo/x.py")),
        ("delete with code", put(*EDITS, 2, "code", value="call.py")),
        ("delete without anchor", drop(*EDITS, 2, "anchor")),
        ("add-file with anchor", put(*EDITS, 0, "anchor", value="count")),
        ("add-file without path", drop(*EDITS, 0, "path")),
        ("add-file without code", drop(*EDITS, 0, "code")),
        ("path escapes", put(*EDITS, 0, "path", value="demo/../../x.py")),
        ("absolute path", put(*EDITS, 0, "path", value="/demo/x.py")),
        ("backslash path", put(*EDITS, 0, "path", value="demo\\x.py")),
        ("code escapes", put(*EDITS, 1, "code", value="../call.py")),
        ("code is no Python", put(*EDITS, 1, "code", value="call.sh")),
        ("odd variant", put("variants", value={"demo-dist": [{"anchor": "count", "op": "delete"}]})),
        ("empty variant", put("variants", value={"demo-dist@v1.0.0": []})),
        ("proof elsewhere", put("proof", "test", value="tests/test_rows.py")),
        ("proof escapes", put("proof", "test", value="tests/fixes/../test_rows.py")),
        ("nothing red on stock", put("proof", "stock", value={})),
        ("stock names no test", put("proof", "stock", value={"rows": "x"})),
        ("empty expression", put("proof", "stock", value={"test_rows": ""})),
        ("broken expression", put("proof", "stock", value={"test_rows": "row ("})),
        *((f"{name} in the history", put("history", value=[value])) for name, value in BAD_HISTORY.items()),
        ("history is a mapping", put("history", value=PAST)),
        ("upstream form of a new file", put(*EDITS, 0, "upstream-form", value="rows = 2")),
        ("indented upstream form", put(*EDITS, 1, "upstream-form", value=" rows = 2")),
        ("upstream form ends in an empty line", put(*EDITS, 1, "upstream-form", value="rows = 2\n\n")),
        ("empty upstream form", put(*EDITS, 1, "upstream-form", value="")),
        ("expression is a number", put("proof", "stock", value={"test_rows": 3})),
        *((f"upstream-has {name}", put("upstream-has", value=value)) for name, value in BAD_HAS.items()),
    ],
    "anchors": [
        *((f"no {key}", drop(key)) for key in GOOD["anchors"]),
        ("unknown key", put("tag", value="v1")),
        ("unknown key in file", put(*FILE, "mode", value="0644")),
        ("unknown key in anchor", put(*FILE, "anchors", "count", "line", value=3)),
        ("odd distribution", put("distribution", value="Demo_Dist")),
        ("release escapes", put("release", value="../v1")),
        ("version is a number", put("version", value=1.0)),
        ("package with a dash", put("package", value="demo-dist")),
        ("short commit", put("commit", value="abc1234")),
        ("abbreviated commit without an archive", put("commit", value="abcdef012")),
        ("an archive and a commit that is too short", archive("abcdef01")),
        ("commit with capitals", put("commit", value="A" * 40)),
        ("also-commits is a string", put("also-commits", value="a" * 40)),
        ("also-commits short", put("also-commits", value=["abc"])),
        ("also-commits twice", put("also-commits", value=["c" * 40, "c" * 40])),
        ("git over ssh", put("git", value="git@example.org:demo.git")),
        ("sdist without hash", put("sdist", value={"filename": "demo-1.0.0.tar.gz"})),
        ("sdist with md5", put("sdist", value={"filename": "demo-1.0.0.tar.gz", "sha256": "d" * 32})),
        ("sdist is a wheel", put("sdist", value={"filename": "demo-1.0.0.whl", "sha256": "d" * 64})),
        ("sdist with a folder", put("sdist", value={"filename": "../demo-1.0.0.tar.gz", "sha256": "d" * 64})),
        ("files is a list", put("files", value=[])),
        ("file without hash", drop(*FILE, "sha256")),
        ("hash too short", put(*FILE, "sha256", value="b" * 63)),
        ("file escapes", put("files", "demo/../x.py", value={"sha256": "b" * 64})),
        ("absolute file", put("files", "/demo/x.py", value={"sha256": "b" * 64})),
        ("file is no Python", put("files", "demo/x.so", value={"sha256": "b" * 64})),
        ("anchor with capitals", put(*FILE, "anchors", "Count", value={"text": "x"})),
        ("anchor is a string", put(*FILE, "anchors", "count", value="rows = 1")),
        ("scope with a call", put(*FILE, "anchors", "count", "within", value="Table.count()")),
        ("empty text", put(*FILE, "anchors", "count", "text", value="")),
        ("indented text", put(*FILE, "anchors", "count", "text", value="  rows = 1")),
        ("text ends in an empty line", put(*FILE, "anchors", "count", "text", value="rows = 1\n\n")),
        ("text with a tab", put(*FILE, "anchors", "count", "text", value="if x:\n\trows = 1")),
    ],
    "profile": [
        *((f"no {key}", drop(key)) for key in GOOD["profile"] if key != "launch"),
        ("launch is a string", put("launch", value="demo")),
        ("launch twice", put("launch", value=["demo", "demo"])),
        ("launch escapes", put("launch", value=["../demo"])),
        ("unknown key", put("optin", value=[])),
        ("name with a space", put("profile", value="demo v1")),
        ("aliases is a string", put("aliases", value="v1")),
        ("alias with a slash", put("aliases", value=["a/b"])),
        ("alias twice", put("aliases", value=["v1", "v1"])),
        ("blank hardware", put("hardware", value=" ")),
        ("experimental is a string", put("experimental", value="maybe")),
        ("experimental is a number", put("experimental", value=1)),
        ("no release", put("releases", value={})),
        ("releases is a list", put("releases", value=["demo-dist@v1.0.0"])),
        ("release is a number", put("releases", "demo-dist", value=1)),
        ("release escapes", put("releases", "demo-dist", value="../v1.0.0")),
        ("fixes is a string", put("fixes", value="rows")),
        ("no fix", put("fixes", value=[])),
        ("fix twice", put("fixes", value=["rows", "rows"])),
        ("fix is a mapping", put("fixes", value=[{"id": "rows"}])),
        ("opt-in is null", put("opt-in", value=None)),
    ],
    "launch": [
        *((f"no {key}", drop(key)) for key in ("launch", "about", "sources", "rules")),
        ("unknown key", put("rule", value=[])),
        ("name with a slash", put("launch", value="a/b")),
        ("blank about", put("about", value=" ")),
        ("a source is a number", put("sources", "own", value=1)),
        ("notes is a string", put("notes", value="x")),
        ("a model without match", drop("models", "small", "match")),
        ("a match that is no expression", put("models", "small", "match", value="(")),
        ("unknown key in a model", put("models", "small", "size", value=1)),
        ("variable in small letters", put("variables", "rows", value={"kind": "text"})),
        ("variable of no kind", drop("variables", "ROWS_GIB", "kind")),
        ("variable of an odd kind", put("variables", "ROWS_GIB", "kind", value="bool")),
        ("unset is a number", put("variables", "ROWS_GIB", "unset", value=1)),
        ("no resource", drop("machine", "resource")),
        ("an odd resource", put("machine", "resource", value="gpu")),
        ("no accelerator", put("machine", "count", value=0)),
        ("a capability in small letters", put("machine", "capabilities", value=["sys_nice"])),
        ("memory-lock is a string", put("machine", "memory-lock", value="yes please")),
        ("unknown key in the machine", put("machine", "cpu", value=1)),
        ("no rule", put("rules", value=[])),
        ("rules is a mapping", put("rules", value={"mode": {}})),
        *((f"a rule without {key}", drop("rules", 0, key)) for key in ("rule", "required", "reason", "source")),
        ("a rule of two kinds", put("rules", 0, "forbidden", value="--rows")),
        ("unknown key in a rule", put("rules", 0, "valeu", value="1")),
        ("a short option", put("rules", 0, "required", value="-r")),
        ("a variable in small letters", put("rules", 0, "required", value="rows_mode")),
        ("value is a number", put("rules", 0, "value", value=1)),
        ("value is a mapping", put("rules", 0, "value", value={})),
        ("match is no expression", put("rules", 0, "match", value="*")),
        ("an empty formula", put("rules", 1, "holds", value="")),
        ("a long formula", put("rules", 1, "holds", value="ROWS_GIB + " * 40 + "1")),
        ("an odd level", put("rules", 0, "level", value="fatal")),
        ("models is a string", put("rules", 1, "models", value="small")),
        ("a fix with a slash", put("rules", 0, "fixes", value=["a/b"])),
        ("unset is a string", put("rules", 0, "unset", value="x")),
    ],
}

MACHINE = {
    "runtime": "demo",
    "driver": "demo",
    "resource": "example.com/gpu",
    "count": 8,
    "capabilities": ["IPC_LOCK"],
    "memory-lock": True,
    "variables": {"DEVICES": "all"},
}
ALSO_GOOD: dict[str, list[tuple[str, Callable[[dict[str, Any]], None]]]] = {
    "fix": [
        ("limits", put("limits", value="only rows")),
        ("backport with a commit", put("origin", value={"kind": "backport", "commit": "e" * 40})),
        ("submitted", put("upstream", value={"status": "submitted", "url": "https://example.org/pull/1"})),
        ("denied with a reason", put("upstream", value={"status": "denied", "reason": "by design"})),
        ("a variant", put("variants", value={"demo-dist@v1.0.0": GOOD["fix"]["edits"]["demo-dist"]})),
        ("history", put("history", value=[PAST])),
        ("history of one release", put("history", value=[{**PAST, "edits": {"demo-dist@v1.0.0": [OLD_CALL]}}])),
        ("an upstream form", put(*EDITS, 1, "upstream-form", value="if rows:\n    count = 2\n")),
        ("requires nothing", put("requires", value=[])),
        ("requires-with no distribution", put("requires-with", value={})),
        ("upstream-has a part", upstream_has_a_part),
    ],
    "anchors": [
        ("a second file without anchors", put("files", "demo/other.py", value={"sha256": "c" * 64})),
        ("other commits", put("also-commits", value=["c" * 40])),
        ("git", put("git", value="https://example.org/demo")),
        ("sdist", put("sdist", value={"filename": "demo-1.0.0.tar.gz", "sha256": "d" * 64})),
        ("an archive and an abbreviated commit", archive("abcdef012")),
        ("anchor without scope", drop(*FILE, "anchors", "count", "within")),
        ("a module's end", put(*FILE, "anchors", "end", value={})),
    ],
    "profile": [
        ("aliases", put("aliases", value=["v1", "v1.0.0"])),
        ("experimental", put("experimental", value=True)),
        ("no opt-in", put("opt-in", value=[])),
    ],
    "launch": [
        ("notes", put("notes", value=["read this", "and this"])),
        ("a whole machine", put("machine", value=MACHINE)),
        ("several texts", put("rules", 0, "also", value=["quick", "swift"])),
        ("a level", put("rules", 0, "level", value="note")),
        ("with a fix", put("rules", 0, "fixes", value=["rows"])),
        ("without a fix", put("rules", 0, "without", value=["rows"])),
        ("a condition", put("rules", 0, "when", value="ROWS_GIB > 1")),
        ("an expression", put("rules", 0, "match", value="fast.*")),
        ("unset is right", put("rules", 0, "unset", value=True)),
        ("a variable without a default", drop("variables", "ROWS_GIB", "unset")),
    ],
}


def cases(corpus: dict[str, list[tuple[str, Callable[[dict[str, Any]], None]]]]) -> Iterator[Any]:
    for kind, changes in corpus.items():
        for name, change in changes:
            yield pytest.param(kind, change, id=f"{kind}: {name}")


def validator(kind: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((SCHEMAS / f"{kind}.schema.json").read_text(encoding="utf-8"))
    checker = jsonschema.FormatChecker(formats=["regex"])
    return jsonschema.Draft202012Validator(schema, format_checker=checker)


def write_registry(root: Path, documents: dict[str, dict[str, Any]]) -> None:
    payloads = root / "patches" / "rows"
    payloads.mkdir(parents=True)
    (payloads / "rows.py").write_text("ROWS = 1\n", encoding="utf-8")
    (payloads / "call.py").write_text("count_rows()\n", encoding="utf-8")
    proof = root / "tests" / "fixes" / "test_rows.py"
    proof.parent.mkdir(parents=True)
    proof.write_text("def test_rows():\n    assert True\n", encoding="utf-8")
    for kind, document in documents.items():
        file = root / FILES[kind]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")


def changed(kind: str, change: Callable[[dict[str, Any]], None]) -> dict[str, dict[str, Any]]:
    documents = copy.deepcopy(GOOD)
    change(documents[kind])
    return documents


@pytest.mark.parametrize(("kind", "change"), [*cases(BAD)])
def test_both_refuse(kind: str, change: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    documents = changed(kind, change)
    write_registry(tmp_path, documents)
    with pytest.raises(RegistryError) as caught:
        registry.load(str(tmp_path))
    assert FILES[kind] in {problem.file for problem in caught.value.problems}
    assert not validator(kind).is_valid(documents[kind])


@pytest.mark.parametrize(("kind", "change"), [*cases(ALSO_GOOD), ("fix", lambda document: None)])
def test_both_accept(kind: str, change: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    documents = changed(kind, change)
    write_registry(tmp_path, documents)
    registry.load(str(tmp_path))
    for each, document in documents.items():
        validator(each).validate(document)


@pytest.mark.parametrize("kind", [*KINDS, "receipt"])
def test_the_schema_is_a_schema_and_describes_every_property(kind: str) -> None:
    schema = json.loads((SCHEMAS / f"{kind}.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    silent: list[str] = []

    def walk(node: Any, path: str) -> None:
        if isinstance(node, list):
            for index, each in enumerate(node):
                walk(each, f"{path}/{index}")
        if not isinstance(node, dict):
            return
        for key, each in node.items():
            conditional = any(part in ("if", "then") for part in path.split("/"))
            if key == "properties" and not conditional:
                silent.extend(f"{path}/{name}" for name, value in each.items() if not value.get("description"))
                assert node.get("additionalProperties") is False, path
            walk(each, f"{path}/{key}")

    walk(schema, "")
    assert silent == []


def test_the_registry_s_own_files_fit_and_name_their_schema() -> None:
    folders = {
        "fix": "fixes/*.yaml",
        "anchors": "anchors/*/*.yaml",
        "profile": "profiles/*.yaml",
        "launch": "launch/*.yaml",
    }
    for kind, pattern in folders.items():
        files = sorted(ROOT.glob(pattern))
        assert files
        for file in files:
            text = file.read_text(encoding="utf-8")
            validator(kind).validate(yaml.safe_load(text))
            first = text.splitlines()[0]
            named = first.removeprefix("# yaml-language-server: $schema=")
            assert (file.parent / named).resolve() == SCHEMAS / f"{kind}.schema.json", f"{file}: {first}"
