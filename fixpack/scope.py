"""Find places in Python source by name and by exact text, without parsing the whole file.

Parsing a 7,700-line file costs 80 ms, a third of an apply.  ``find_scope`` reads headers and
indentation instead; ``fixpack lint`` holds every scope of the registry against Python's own parser,
and an apply cannot differ from what was linted, because base and result are pinned by sha256.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from fixpack.errors import Problem
from fixpack.model import Anchor, SourceFile


class Place(NamedTuple):
    """A run of whole lines: byte offsets (end behind the last newline) and their indentation."""

    start: int
    end: int
    indent: bytes


class ScopeError(Exception):
    """The scope is not there, or not once; ``code`` is the reason code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def line_at(data: bytes, offset: int) -> int:
    """The 1-based number of the line that holds ``offset``."""
    return data.count(b"\n", 0, offset) + 1


@lru_cache(maxsize=128)
def find_scope(data: bytes, dotted: str) -> Place:
    """The lines of a class or function, header included, decorators and what follows excluded.

    :param dotted: "Class.method"; "" is the whole file.
    :raises ScopeError: if a part of the name is missing or defined more than once.
    """
    if not dotted:
        return Place(0, len(data), b"")
    before, _, name = dotted.rpartition(".")
    outer = find_scope(data, before)
    depth = len(outer.indent) if before else -1
    found = [place for place in _headers(data, name.encode(), outer.start, outer.end) if len(place.indent) > depth]
    least = min((len(place.indent) for place in found), default=0)
    found = [place for place in found if len(place.indent) == least]
    if not found:
        raise ScopeError("scope_missing", f"the scope {dotted} is not there")
    if len(found) > 1:
        lines = ", ".join(str(line_at(data, place.start)) for place in found)
        raise ScopeError("scope_ambiguous", f"the scope {dotted} is defined {len(found)} times (lines {lines})")
    header = found[0]
    return Place(header.start, _scope_end(data, header.end, outer.end, len(header.indent)), header.indent)


def guarded(data: bytes, dotted: str) -> bytes:
    """The bytes of a scope and of the decorators above it.

    :raises ScopeError: if the scope is not there exactly once.
    """
    scope = find_scope(data, dotted)
    start = at = scope.start
    while at:
        line_start = data.rfind(b"\n", 0, at - 1) + 1
        line = data[line_start:at]
        text = line.lstrip(b" \t")
        depth = len(line) - len(text)
        if not text.strip() or depth < len(scope.indent) or (depth == len(scope.indent) and text[:1] not in b"@)]}#"):
            break
        at = line_start
        if depth == len(scope.indent) and text[:1] == b"@":
            start = at
    return data[start : scope.end]


_HEADER = re.compile(rb"([ \t]*)(?:async[ \t]+def|def|class)[ \t]+([A-Za-z_0-9\x80-\xff]+)")


def _headers(data: bytes, name: bytes, start: int, end: int) -> list[Place]:
    """Every line between two offsets that defines ``name``: line start, end of the name, indentation.

    A search for the bare word and a look at its line is forty times faster than a multi-line pattern.
    """
    places = []
    at = data.find(name, start, end)
    while at >= 0:
        line_start = data.rfind(b"\n", 0, at) + 1
        match = _HEADER.match(data, line_start, end)
        if match and match.start(2) == at and match.group(2) == name:
            places.append(Place(line_start, match.end(), match.group(1)))
        at = data.find(name, at + 1, end)
    return places


def _scope_end(data: bytes, after: int, limit: int, indent: int) -> int:
    """Where a block ends: before the next statement that is indented no deeper than its header."""
    deeper = b" " * (indent + 1)
    at = data.find(b"\n", after, limit) + 1 or limit
    end = limit
    while at < limit:
        stop = data.find(b"\n", at, limit) + 1 or limit
        if not data.startswith(deeper, at):
            text = data[at:stop].lstrip(b" \t")
            depth = stop - at - len(text)
            # A line that begins with a closing bracket still belongs to a header or call over several lines.
            if text.strip() and text[:1] not in b"#)]}" and depth <= indent:
                end = at
                break
        at = stop
    return _trim(data, after, end, indent)


def _trim(data: bytes, start: int, end: int, indent: int) -> int:
    """``end`` moved up over blank lines and comments that belong to what follows."""
    while end > start:
        line_start = data.rfind(b"\n", start, end - 1) + 1
        line = data[line_start:end]
        text = line.strip()
        if text and not (text.startswith(b"#") and len(line) - len(line.lstrip()) <= indent):
            break
        if line_start <= start:
            break
        end = line_start
    return end


def find_text(data: bytes, text: str, start: int, end: int) -> list[Place]:
    """Every place between two offsets where the anchor's lines stand as whole lines.

    The first line may have any indentation; the others must have the same one before their own.
    """
    lines = text.encode().split(b"\n")
    places: list[Place] = []
    at = data.find(lines[0], start, end)
    while at >= 0:
        line_start = data.rfind(b"\n", 0, at) + 1
        indent = data[line_start:at]
        if line_start >= start and not indent.strip(b" \t"):
            block = b"\n".join(indent + line if line else line for line in lines)
            stop = line_start + len(block)
            whole = stop == len(data) or data[stop : stop + 1] == b"\n"
            if whole and stop <= end and data.startswith(block, line_start):
                places.append(Place(line_start, min(stop + 1, len(data)), indent))
        at = data.find(lines[0], at + 1, end)
    return places


def locate(data: bytes, file: SourceFile, anchor: Anchor, fix: str) -> Place | Problem:
    """The one place of an anchor, or the problem that says why there is none.

    :param data: the file's bytes.
    :param fix: the fix that needs it, for the problem.
    """
    try:
        scope = find_scope(data, anchor.within)
    except ScopeError as error:
        hint = f"compare the file with the pin; the anchor is {anchor.where}"
        return Problem(error.code, f"anchor {anchor.name!r}: {error}", fix, file.path, hint=hint)
    if not anchor.text:
        return _end_of(data, scope, anchor)
    places = find_text(data, anchor.text, scope.start, scope.end)
    if len(places) == 1:
        place = places[0]
        if data[place.end - 1 : place.end] != b"\n":
            return Problem("anchor_at_end", f"anchor {anchor.name!r} is a last line without newline", fix, file.path)
        return place
    within = f" in {anchor.within}" if anchor.within else ""
    expected = f"1 match of {anchor.text.splitlines()[0]!r}{within}"
    if places:
        lines = ", ".join(str(line_at(data, place.start)) for place in places)
        return Problem(
            "anchor_ambiguous",
            f"anchor {anchor.name!r} stands {len(places)} times{within}",
            fix,
            file.path,
            line_at(data, places[1].start),
            expected,
            f"{len(places)} matches, on lines {lines}",
            hint=f"narrow the anchor ({anchor.where}) with more lines or a scope",
        )
    from fixpack.nearest import nearest  # difflib: only a failing run pays for it

    line, diff = nearest(data[scope.start : scope.end], anchor.text)
    line += line_at(data, scope.start) - 1 if line else 0
    return Problem(
        "anchor_missing",
        f"anchor {anchor.name!r} is not there{within}",
        fix,
        file.path,
        line,
        expected,
        "0 matches",
        diff,
        f"the anchor is {anchor.where}; its text is whole lines that stand once in its scope",
    )


def _end_of(data: bytes, scope: Place, anchor: Anchor) -> Place:
    """The place behind the last line of a scope, with the indentation of its body."""
    if not anchor.within:
        return Place(len(data), len(data), b"")
    body = re.compile(rb"(?m)^([ \t]{%d,})[^ \t\r\n#]" % (len(scope.indent) + 1))
    first = data.find(b"\n", scope.start) + 1
    depths = [match.group(1) for match in body.finditer(data, first, scope.end)]
    return Place(scope.end, scope.end, min(depths, key=len, default=scope.indent + b"    "))
