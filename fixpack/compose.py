"""Splice all edits into a base in memory, and take them out again.

All edits of all fixes resolve against the same base and must not overlap, so the result depends
neither on the order of the fixes nor on what was applied before.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fixpack.errors import MismatchError, Problem
from fixpack.model import Edit, Fix, PastEdit, Release
from fixpack.payload import MARKER, payload_sha256, render
from fixpack.scope import Place, ScopeError, find_scope, line_at, locate


class Splice(NamedTuple):
    """One edit, resolved: the bytes between two offsets of the base become ``block``."""

    start: int
    end: int
    block: bytes
    fix: str
    edit: Edit


def touched(release: Release, fixes: Iterable[Fix]) -> dict[str, bool]:
    """Every file that the fixes touch in a release; True for one that they add."""
    files: dict[str, bool] = {}
    for fix in fixes:
        for edit in fix.edits_for(release):
            path = target_path(release, edit)
            if path:
                files[path] = edit.op == "add-file"
    return files


def target_path(release: Release, edit: Edit | PastEdit) -> str:
    """The file that an edit changes in a release, "" if its anchor is unknown there."""
    if edit.op == "add-file":
        return edit.path
    found = release.find(edit.anchor)
    return found[0].path if found else ""


def compose(base: dict[str, bytes | None], release: Release, fixes: Sequence[Fix]) -> dict[str, bytes]:
    """The result of all edits of ``fixes`` in one release.

    :param base: the pinned bytes of each touched file, None for a file that is to be added.
    :returns: the new bytes of each file that an edit touches.
    :raises MismatchError: with every anchor that is not there exactly once and every overlap.
    """
    problems: list[Problem] = []
    splices: dict[str, list[Splice]] = {}
    results: dict[str, bytes] = {}
    for fix in fixes:
        for edit in fix.edits_for(release):
            if edit.op == "add-file":
                if edit.path in results:
                    problems.append(_twice(fix, edit))
                results[edit.path] = render(fix, edit, b"")
                continue
            splice = _resolve(base, release, fix, edit)
            if isinstance(splice, Problem):
                problems.append(splice)
            else:
                splices.setdefault(target_path(release, edit), []).append(splice)
    for path, found in splices.items():
        data = base[path]
        assert data is not None
        found.sort(key=lambda splice: (splice.start, splice.end))
        problems.extend(_overlaps(path, data, found))
        results[path] = _join(data, found)
    if problems:
        raise MismatchError(*problems)
    return results


def _resolve(base: dict[str, bytes | None], release: Release, fix: Fix, edit: Edit) -> Splice | Problem:
    found = release.find(edit.anchor)
    if found is None:
        message = f"{release.where} has no anchor {edit.anchor!r}"
        return Problem("unknown_anchor", message, fix.id, edit.where.rpartition(":")[0])
    file, anchor = found
    data = base[file.path]
    if data is None:
        return Problem("file_missing", f"{file.path} is not there", fix.id, file.path)
    place = locate(data, file, anchor, fix.id)
    if isinstance(place, Problem):
        return place
    start, end = place.start, place.end
    if edit.op in ("insert-before", "append"):
        end = start
    elif edit.op == "insert-after":
        start = end
    if edit.op == "append" and start and data[start - 1 : start] != b"\n":
        return Problem("anchor_at_end", f"{file.path} does not end with a newline", fix.id, file.path)
    return Splice(start, end, render(fix, edit, place.indent), fix.id, edit)


def _twice(fix: Fix, edit: Edit) -> Problem:
    return Problem("overlap", f"two fixes add {edit.path}", fix.id, edit.path)


def _overlaps(path: str, data: bytes, splices: list[Splice]) -> Iterable[Problem]:
    if not splices:
        return
    one = splices[0]  # of those so far, the one that reaches furthest
    for two in splices[1:]:
        same_point = one.start == one.end == two.start == two.end
        if two.start < one.end or same_point:
            yield Problem(
                "overlap",
                f"{one.fix} ({one.edit.where}) and {two.fix} ({two.edit.where}) edit the same place",
                two.fix,
                path,
                line_at(data, two.start),
                hint="merge the two edits, or anchor one of them elsewhere",
            )
        if two.end >= one.end:
            one = two


def _join(data: bytes, splices: list[Splice]) -> bytes:
    parts: list[bytes] = []
    at = 0
    for splice in splices:
        parts += (data[at : splice.start], splice.block)
        at = splice.end
    parts.append(data[at:])
    return b"".join(parts)


def scopes(release: Release, fixes: Iterable[Fix], path: str) -> tuple[str, ...]:
    """The scopes of a file that the fixes edit; "" among them stands for the whole file."""
    found: dict[str, None] = {}
    for fix in fixes:
        for edit in fix.edits_for(release):
            if target_path(release, edit) == path:
                place = release.find(edit.anchor) if edit.anchor else None
                found[place[1].within if place else ""] = None
    return tuple(found)


def check_syntax(path: str, data: bytes, edited: Sequence[str] = ("",)) -> Problem | None:
    """Compile a result.  None if Python accepts it, else the problem.

    :param edited: the scopes that were edited.  What is outside of them is the pinned base, and the
        result's hash is the lock's, whose making compiled the whole file; so the running Python need
        only accept the edited scopes.  "" compiles the whole file.
    """
    if "" not in edited and all(_compiles(path, data, dotted) for dotted in edited):
        return None
    try:
        _compile(data, path)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        line = getattr(error, "lineno", 0) or 0
        return Problem("syntax_error", f"the result is not valid Python: {error}", file=path, line=line)
    return None


def _compiles(path: str, data: bytes, dotted: str) -> bool:
    """Whether a scope, taken alone, is valid Python."""
    try:
        scope = find_scope(data, dotted)
        _compile((b"if 1:\n" if scope.indent else b"") + data[scope.start : scope.end], path)
    except (ScopeError, SyntaxError, ValueError, MemoryError, RecursionError):
        return False  # perhaps only out of its context: the whole file decides
    return True


def _compile(data: bytes, path: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # upstream's own invalid escapes and the like are not ours to report
        compile(data, path, "exec", dont_inherit=True)


class Stripped(NamedTuple):
    """A file with every known region taken out again."""

    base: bytes
    applied: dict[str, int]  # fix -> number of its regions that were found byte for byte
    problems: tuple[Problem, ...]  # regions that are not what the registry would put there
    stale: dict[str, int]  # fix -> its older revision, whose regions were found as the history says


def strip(path: str, data: bytes, release: Release, fixes: dict[str, Fix]) -> Stripped:
    """Undo in memory what the markers name.  Markers only nominate: the caller compares hashes.

    :param fixes: the registry's fixes by id.
    """
    marks = list(MARKER.finditer(data))
    applied: dict[str, int] = {}
    stale: dict[str, int] = {}
    problems: list[Problem] = []
    parts: list[bytes] = []
    at = index = 0
    while index < len(marks):
        begin = marks[index]
        end = marks[index + 1] if index + 1 < len(marks) else None
        line = line_at(data, begin.start())
        name = begin.group(3).decode()
        paired = end is not None and end.group(2) == b"end" and end.group(3, 4, 5) == begin.group(3, 4, 5)
        if end is None or not paired or begin.group(2) != b"begin":
            problems.append(Problem("marker_broken", f"a fixpack marker of {name} has no partner", name, path, line))
            index += 1
            continue
        index += 2
        region = Place(begin.start(), min(end.end() + 1, len(data)), begin.group(1))
        edit = _edit_of(path, data, region, begin.group(3, 4, 5), release, fixes, line)
        if isinstance(edit, Problem):
            problems.append(edit)
            continue
        if isinstance(edit, PastEdit):
            stale[name] = int(begin.group(4))
        else:
            applied[name] = applied.get(name, 0) + 1
        parts += (data[at : region.start], _original(edit, release, region.indent))
        at = region.end
    parts.append(data[at:])
    return Stripped(b"".join(parts), applied, tuple(problems), stale)


def _edit_of(
    path: str,
    data: bytes,
    region: Place,
    names: tuple[bytes, ...],
    release: Release,
    fixes: dict[str, Fix],
    line: int,
) -> Edit | PastEdit | Problem:
    """The edit that a region is, byte for byte, or why it is none.  A fix may have several at one anchor."""
    name, revision, anchor = names[0].decode(), int(names[1]), names[2].decode()
    fix = fixes.get(name)
    if fix is None:
        hint = "use the registry that applied it, or rebuild from a stock image"
        message = f"the file carries {name}, which this registry lacks"
        return Problem("unknown_fix", message, name, path, line, hint=hint)
    if fix.revision != revision:
        past = _past_edit(fix, revision, anchor, path, data, region, release)
        if past:
            return past
        hint = f"the history of {name} has no such code; rebuild the layer from the stock image"
        message = f"{name} is in the file in revision {revision}; the registry has revision {fix.revision}"
        return Problem("stale_revision", message, name, path, line, hint=hint)
    edits = [
        edit
        for edit in fix.edits_for(release)
        if (edit.anchor or "file") == anchor and target_path(release, edit) == path
    ]
    if not edits:
        message = f"{name} has no edit at {anchor!r} in this file of {release.ref}"
        return Problem("foreign_region", message, name, path, line)
    found = data[region.start : region.end]
    for edit in edits:
        if render(fix, edit, region.indent) == found:
            return edit
    from fixpack.nearest import first_difference

    offset, diff = max(first_difference(render(fix, edit, region.indent), found) for edit in edits)
    message = f"the region of {name} at {anchor!r} was edited after it was applied"
    hint = "rebuild the layer from the stock image"
    return Problem("edited_inside", message, name, path, line + offset, diff=diff, hint=hint)


def _past_edit(
    fix: Fix, revision: int, anchor: str, path: str, data: bytes, region: Place, release: Release
) -> PastEdit | None:
    """The edit of an older revision that a region is, by the hash of its payload."""
    past = fix.past(revision)
    digest = payload_sha256(data[region.start : region.end], region.indent)
    for edit in past.edits_for(release) if past else ():
        here = (edit.anchor or "file") == anchor and target_path(release, edit) == path
        if here and digest == edit.sha256:
            return edit
    return None


def _original(edit: Edit | PastEdit, release: Release, indent: bytes) -> bytes:
    """What stood in the base where the region is now."""
    if edit.op not in ("replace", "delete"):
        return b""
    found = release.find(edit.anchor)
    assert found is not None
    lines = found[1].text.encode().split(b"\n")
    return b"".join((indent + line if line else line) + b"\n" for line in lines)
