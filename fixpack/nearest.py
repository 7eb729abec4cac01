"""The candidate that looks most like an anchor, for messages; never for placing anything."""

from __future__ import annotations

import difflib


def nearest(scope: bytes, text: str) -> tuple[int, tuple[str, ...]]:
    """The line (1-based, within ``scope``) most like the anchor, and a small diff.

    :returns: (0, ()) when nothing is alike.
    """
    wanted = text.split("\n")
    lines = scope.decode("utf-8", "replace").split("\n")
    first = wanted[0].strip()
    near = difflib.get_close_matches(first, {line.strip() for line in lines}, n=1, cutoff=0.6)
    if not near:
        return 0, ()
    at = next(index for index, line in enumerate(lines) if line.strip() == near[0])
    indent = len(lines[at]) - len(lines[at].lstrip())
    found = [line[indent:] if not line[:indent].strip() else line for line in lines[at : at + len(wanted)]]
    diff = [line.rstrip("\n") for line in difflib.ndiff(wanted, found) if line[0] in "-+?"]
    return at + 1, tuple(diff[:12])


def first_difference(expected: bytes, found: bytes) -> tuple[int, tuple[str, ...]]:
    """The first line (0-based) that differs, and both versions of it."""
    wanted = expected.decode("utf-8", "replace").split("\n")
    have = found.decode("utf-8", "replace").split("\n")
    for index in range(max(len(wanted), len(have))):
        old = wanted[index] if index < len(wanted) else ""
        new = have[index] if index < len(have) else ""
        if old != new:
            return index, (f"- {old}", f"+ {new}")
    return 0, ()
