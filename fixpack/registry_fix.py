"""Load a fix: fixes/<id>.yaml, and the payloads that its edits name."""

from __future__ import annotations

import re

from fixpack.errors import Problem
from fixpack.model import (
    OPS,
    ORIGIN_KINDS,
    UPSTREAM_STATUS,
    Edit,
    Fix,
    Origin,
    PastEdit,
    Proof,
    Revision,
    Upstream,
    UpstreamHas,
)
from fixpack.payload import read_payload
from fixpack.registry_files import (
    CODE,
    COMMIT,
    NAME,
    PATH,
    PROOF_TEST,
    RELEASE,
    SHA256,
    URL,
    check_lines,
    open_yaml,
    same_name,
)
from fixpack.strictyaml import Reader, Value


def load_fix(root: str, name: str, problems: list[Problem]) -> Fix | None:
    """A fix by the name of its file; what is wrong with it goes to `problems`."""
    path = f"fixes/{name}.yaml"
    before = len(problems)
    top = open_yaml(root, path, problems, "the fix", name)
    if top is None:
        return None
    same_name(top, "id", name, NAME, "the file's name")
    origin = Origin("own", "", "")
    reader = top.sub("origin")
    if reader:
        origin = Origin(
            reader.text("kind", oneof=ORIGIN_KINDS), reader.text("url", "", URL), reader.text("commit", "", COMMIT)
        )
        if origin.kind not in ("", "own") and not origin.url and not origin.commit:
            reader.bad(f"an origin of kind {origin.kind!r} needs a url or a commit")
        reader.done()
    upstream = Upstream("not-reported", "", "")
    reader = top.sub("upstream")
    if reader:
        upstream = Upstream(
            reader.text("status", oneof=UPSTREAM_STATUS), reader.text("url", "", URL), reader.text("reason", "")
        )
        if upstream.status not in ("", "not-reported", "pending") and not upstream.url and not upstream.reason:
            reader.bad(f"the status {upstream.status!r} needs a url or a reason")
        reader.done()
    edits: dict[str, tuple[Edit, ...]] = {}
    reader = top.sub("edits")
    for distribution, item in reader.pairs(NAME) if reader else ():
        edits[distribution] = _load_edits(root, name, distribution, item, path, problems)
    if reader and not edits:
        reader.bad("the fix has no edits")
    variants: dict[str, tuple[Edit, ...]] = {}
    reader = top.sub("variants", required=False)
    for ref, item in reader.pairs(f"{NAME}@{RELEASE}") if reader else ():
        variants[ref] = _load_edits(root, name, ref, item, path, problems)
    proof = Proof("", {})
    reader = top.sub("proof")
    if reader:
        stock_reader = reader.sub("stock")
        stock: dict[str, str] = {}
        for test, expected in stock_reader.pairs(r"test_[a-z0-9_]+") if stock_reader else ():
            if isinstance(expected.data, str) and expected.data.strip():
                stock[test] = expected.data
                wrong = _not_an_expression(expected.data)
                if wrong and stock_reader:
                    stock_reader.bad(f"{test!r} is not a regular expression: {wrong}", expected.line)
            elif stock_reader:
                stock_reader.bad(f"{test!r} must be a regular expression for its failure on stock", expected.line)
        if stock_reader and not stock:
            stock_reader.bad("no test is declared to fail on stock, so nothing is proven")
        proof = Proof(reader.text("test", pattern=PROOF_TEST), stock)
        reader.done()
    revision = top.integer("revision", least=1)
    fix = Fix(
        name,
        revision,
        top.text("title"),
        top.text("symptom"),
        top.text("cause"),
        origin,
        upstream,
        top.text("retires-when"),
        top.text("limits", ""),
        top.texts("requires", pattern=NAME),
        edits,
        variants,
        proof,
        path,
        _load_history(top, revision),
        _load_upstream_has(top),
        _load_requires_with(top),
    )
    top.done()
    return fix if len(problems) == before else None


def _load_requires_with(top: Reader) -> dict[str, tuple[str, ...]]:
    reader = top.sub("requires-with", required=False)
    found: dict[str, tuple[str, ...]] = {}
    for distribution, item in reader.pairs(NAME) if reader else ():
        if reader:
            found[distribution] = reader.texts(distribution, required=True, pattern=NAME)
            if item.data == []:
                reader.bad(f"{distribution!r} must name at least one fix", item.line)
    return found


def _load_upstream_has(top: Reader) -> dict[str, UpstreamHas]:
    found: dict[str, UpstreamHas] = {}
    reader = top.sub("upstream-has", required=False)
    for ref, item in reader.pairs(f"{NAME}@{RELEASE}") if reader else ():
        inner = Reader(item, top.file, top.problems, f"upstream-has of {ref}", top.fix)
        found[ref] = UpstreamHas(
            inner.text("url", "", URL),
            inner.text("reason"),
            inner.text("anchor", pattern=NAME),
            inner.texts("green", pattern=r"test_[a-z0-9_]+"),
            f"{top.file}:{item.line}",
        )
        inner.done()
    return found


def _not_an_expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        return str(error)
    return ""


def _load_edits(root: str, fix: str, key: str, value: Value, path: str, problems: list[Problem]) -> tuple[Edit, ...]:
    if not isinstance(value.data, list) or not value.data:
        problems.append(
            Problem("registry_invalid", f"{key!r} must be a list of at least one edit", fix, path, value.line)
        )
        return ()
    edits: list[Edit] = []
    for index, item in enumerate(value.data, 1):
        reader = Reader(item, path, problems, f"edit {index} of {key}", fix)
        op, anchor, file_path = _place(reader)
        code = payload = ""
        if op and op != "delete":
            code = reader.text("code", pattern=CODE)
            if code:
                payload = read_payload(root, fix, code, reader)
        form = reader.text("upstream-form", "").removesuffix("\n") if op != "add-file" else ""
        check_lines(reader, "upstream-form", form)
        reader.done()
        edits.append(Edit(op, anchor, file_path, code, payload, f"{path}:{reader.line}", form))
    return tuple(edits)


def _place(reader: Reader) -> tuple[str, str, str]:
    """What an edit does, and where: op, anchor, and path, of which one is "" as the op wants it."""
    op = reader.text("op", oneof=OPS)
    if op == "add-file":
        return op, "", reader.text("path", pattern=PATH)
    return op, reader.text("anchor", pattern=NAME) if op else "", ""


def _load_history(top: Reader, revision: int) -> tuple[Revision, ...]:
    found: list[Revision] = []
    for item in top.items("history"):
        reader = Reader(item, top.file, top.problems, "an older revision", top.fix)
        number = reader.integer("revision", least=1)
        if revision and number >= revision:
            reader.bad(f"revision {number} is not older than the fix's own, {revision}", reader.line_of("revision"))
        if any(each.number == number for each in found):
            reader.bad(f"revision {number} is there twice", reader.line_of("revision"))
        edits: dict[str, tuple[PastEdit, ...]] = {}
        edits_reader = reader.sub("edits")
        for key, value in edits_reader.pairs(f"{NAME}(@{RELEASE})?") if edits_reader else ():
            edits[key] = _load_past_edits(key, value, reader)
        if edits_reader and not edits:
            edits_reader.bad("an older revision without edits cannot be recognised")
        found.append(Revision(number, reader.text("reason"), edits))
        reader.done()
    return tuple(found)


def _load_past_edits(key: str, value: Value, parent: Reader) -> tuple[PastEdit, ...]:
    if not isinstance(value.data, list) or not value.data:
        parent.bad(f"{key!r} must be a list of at least one edit", value.line)
        return ()
    edits = []
    for index, item in enumerate(value.data, 1):
        reader = Reader(item, parent.file, parent.problems, f"edit {index} of {key}", parent.fix)
        op, anchor, path = _place(reader)
        sha256 = ""
        if op and op != "delete":
            sha256 = reader.text("sha256", pattern=SHA256)
        reader.done()
        edits.append(PastEdit(op, anchor, path, sha256))
    return tuple(edits)
