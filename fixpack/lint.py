"""Everything about a registry that can be checked without applying it."""

from __future__ import annotations

import ast
import io
import os
import tokenize
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fixpack import lock, locksmith, sources
from fixpack.diagnose import has_form
from fixpack.errors import FixpackError, Problem
from fixpack.model import Anchor, Fix, Registry, Release, SourceFile
from fixpack.scope import Place, ScopeError, find_scope, line_at, locate

#: what Python's parser raises for a text; the last two for one that nests too deeply
_UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


def _why(error: Exception) -> str:
    return str(error) or "it nests too deeply"


class Report(NamedTuple):
    """What lint found."""

    problems: tuple[Problem, ...]
    skipped: tuple[str, ...]  # releases whose source is not in the cache
    counts: dict[str, int]


def lint(registry: Registry) -> Report:
    """Check payloads, unused anchors, proofs, locks, and each release whose source is in the cache."""
    problems: list[Problem] = []
    for fix in registry.fixes.values():
        problems += _check_proof(registry, fix)
        problems += _check_payloads(fix)
    problems += _unused_anchors(registry)
    skipped = []
    trees: dict[str, str] = {}
    for release in registry.releases.values():
        if sources.have(release):
            trees[release.ref] = sources.tree(release)
            problems += _check_pins(release, trees[release.ref])
            problems += _check_upstream_forms(registry, release, trees[release.ref])
        else:
            skipped.append(release.ref)
    problems += _check_locks(registry, trees)
    anchors = sum(len(file.anchors) for release in registry.releases.values() for file in release.files.values())
    counts = {
        "fixes": len(registry.fixes),
        "profiles": len(registry.profiles),
        "releases": len(registry.releases),
        "anchors": anchors,
        "checked": len(trees),
    }
    return Report(tuple(problems), tuple(skipped), counts)


def _check_proof(registry: Registry, fix: Fix) -> Iterator[Problem]:
    path = os.path.join(registry.root, fix.proof.test)
    if not os.path.isdir(os.path.join(registry.root, "tests")):
        return  # an installed registry has no proofs
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, *_UNPARSABLE) as error:
        yield Problem("proof_missing", f"the proof {fix.proof.test} cannot be read: {_why(error)}", fix.id, fix.where)
        return
    tests = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for name in fix.proof.stock:
        if name not in tests:
            yield Problem("proof_missing", f"{fix.proof.test} has no test {name}", fix.id, fix.where)


def _check_payloads(fix: Fix) -> Iterator[Problem]:
    """A payload must survive being indented: no string over several lines, tokens that Python knows."""
    for edits in (*fix.edits.values(), *fix.variants.values()):
        for edit in edits:
            path = f"patches/{fix.id}/{edit.code}"
            if edit.op == "delete":
                continue
            try:
                tokens = list(tokenize.generate_tokens(io.StringIO(edit.payload).readline))
            except (tokenize.TokenError, SyntaxError) as error:
                yield Problem("bad_payload", f"not Python: {error}", fix.id, path)
                continue
            if edit.op == "add-file":
                continue
            for first, last in _strings(tokens):
                if first != last:
                    message = "a string over several lines would change when it is indented"
                    yield Problem("bad_payload", message, fix.id, path, first)


def _unused_anchors(registry: Registry) -> Iterator[Problem]:
    for release in registry.releases.values():
        used = {edit.anchor for fix in registry.fixes.values() for edit in fix.edits_for(release)}
        for fix in registry.fixes.values():
            used.update(edit.anchor for past in fix.history for edit in past.edits_for(release))
            if has := fix.upstream_has.get(release.ref):
                used.add(has.anchor)
        for file in release.files.values():
            for anchor in file.anchors.values():
                if anchor.name not in used:
                    where, _, line = anchor.where.rpartition(":")
                    message = f"no fix uses the anchor {anchor.name!r} of {release.ref}"
                    yield Problem("unused_anchor", message, file=where, line=int(line), hint="remove it")


def _check_pins(release: Release, tree: str) -> Iterator[Problem]:
    try:
        base = locksmith.read_base(release, release.files, tree)
    except FixpackError as error:
        yield from error.problems
        return
    for path, file in release.files.items():
        data = base[path]
        assert data is not None
        scopes = {anchor.within for anchor in file.anchors.values() if anchor.within}
        if scopes:
            yield from _check_scopes(release, file, data, scopes)
        for anchor in file.anchors.values():
            place = locate(data, file, anchor, "")
            if isinstance(place, Problem):
                yield place._replace(hint=f"the anchor is {anchor.where}")
            else:
                yield from _check_in_string(release, file, anchor, data, place)


def _check_scopes(release: Release, file: SourceFile, data: bytes, scopes: set[str]) -> Iterator[Problem]:
    """Hold the scanner's scopes against Python's parser: same first line, same last statement."""
    try:
        tree = ast.parse(data)
    except _UNPARSABLE as error:
        message = f"{file.path} of {release.ref} is nothing that this Python parses: {_why(error)}"
        yield Problem("not_python", message, file=release.where)
        return
    for dotted in sorted(scopes):
        try:
            scope = find_scope(data, dotted)
        except ScopeError:
            continue  # locate reports it
        node = _node(tree, dotted)
        first = line_at(data, scope.start)
        last = _last_statement(data, scope)
        if node is None or (node.lineno, node.end_lineno) != (first, last):
            parsed = f"lines {node.lineno} to {node.end_lineno}" if node else "no such definition"
            message = f"the scope {dotted} of {file.path} in {release.ref} is not what Python's parser sees"
            found = f"lines {first} to {last}"
            yield Problem("scope_differs", message, file=release.where, expected=parsed, found=found)


def _last_statement(data: bytes, scope: Place) -> int:
    """The last line of a scope that is neither blank nor a comment; Python's parser does not count those."""
    lines = data[scope.start : scope.end].split(b"\n")
    while len(lines) > 1 and (not lines[-1].strip() or lines[-1].lstrip().startswith(b"#")):
        lines.pop()
    return line_at(data, scope.start) + len(lines) - 1


Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _node(tree: ast.Module, dotted: str) -> Definition | None:
    body: list[ast.stmt] = tree.body
    node: Definition | None = None
    for name in dotted.split("."):
        found = [each for each in _definitions(body) if each.name == name]
        if len(found) != 1:
            return None
        node = found[0]
        body = node.body
    return node


def _definitions(body: list[ast.stmt]) -> Iterator[Definition]:
    """Definitions of a body, those inside its ifs, trys and withs included."""
    for statement in body:
        if isinstance(statement, Definition):
            yield statement
        else:
            for field in ("body", "orelse", "finalbody", "handlers"):
                for child in getattr(statement, field, []):
                    yield from _definitions(child.body if isinstance(child, ast.ExceptHandler) else [child])


def _check_in_string(
    release: Release, file: SourceFile, anchor: Anchor, data: bytes, place: Place
) -> Iterator[Problem]:
    """An anchor that begins or ends inside a string would put code where none runs."""
    if not anchor.text:
        return
    edges = (line_at(data, place.start), line_at(data, place.end))
    try:
        strings = list(_strings(tokenize.tokenize(io.BytesIO(data).readline)))
    except (tokenize.TokenError, SyntaxError) as error:
        message = f"{file.path} of {release.ref} is nothing that this Python parses: {error}"
        yield Problem("not_python", message, file=release.where)
        return
    for first, last in strings:
        if any(first < line <= last for line in edges):
            message = f"the anchor {anchor.name!r} of {release.ref} begins or ends inside a string in {file.path}"
            where, _, line = anchor.where.rpartition(":")
            yield Problem(
                "bad_anchor", message, file=where, line=int(line), found=f"a string on lines {first} to {last}"
            )
            return


def _check_upstream_forms(registry: Registry, release: Release, tree: str) -> Iterator[Problem]:
    """What upstream is said to have in its own form must not be in the release that is to be fixed."""
    for fix in registry.fixes.values():
        for edit in fix.edits_for(release):
            found = release.find(edit.anchor) if edit.upstream_form else None
            path = os.path.join(tree, found[0].path) if found else ""
            if not os.path.isfile(path):
                continue  # what is missing is reported by its pin
            with open(path, "rb") as file:
                data = file.read()
            if has_form(edit, release, data):
                message = f"upstream's form of the edit at {edit.anchor!r} is in {release.ref} already"
                where, _, line = edit.where.rpartition(":")
                yield Problem("upstream_form_in_base", message, fix.id, where, int(line))


def _strings(tokens: Iterable[tokenize.TokenInfo]) -> Iterator[tuple[int, int]]:
    """First and last line of each string; since Python 3.12 an f-string is several tokens."""
    opened: list[int] = []
    for token in tokens:
        kind = tokenize.tok_name[token.type]
        if kind == "STRING":
            yield token.start[0], token.end[0]
        elif kind in ("FSTRING_START", "TSTRING_START"):
            opened.append(token.start[0])
        elif kind in ("FSTRING_END", "TSTRING_END"):
            yield opened.pop(), token.end[0]


def _check_locks(registry: Registry, trees: dict[str, str]) -> Iterator[Problem]:
    for name in sorted(os.listdir(os.path.join(registry.root, "profiles"))):
        if name.endswith(lock.SUFFIX) and name[: -len(lock.SUFFIX)] not in registry.profiles:
            path = f"profiles/{name}"
            yield Problem("orphan_lock", f"{path} belongs to no profile", file=path, hint="remove it")
    for profile in registry.profiles.values():
        try:
            locked = lock.read(registry.root, profile.name)
        except FixpackError as error:
            yield from error.problems
            continue
        found = lock.stale(registry.root, locked)
        yield from found
        refs = {distribution: f"{distribution}@{name}" for distribution, name in profile.releases.items()}
        if found or not all(ref in trees or not registry.releases[ref].files for ref in refs.values()):
            continue
        try:
            made = locksmith.make(registry, profile, {each: trees.get(ref, "") for each, ref in refs.items()})
        except FixpackError as error:
            yield from error.problems
            continue
        if made != locked:
            path = f"profiles/{profile.name}{lock.SUFFIX}"
            yield Problem("lock_stale", f"{path} is not what the registry gives", file=path, hint="run `fixpack lock`")
