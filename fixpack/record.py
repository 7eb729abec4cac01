"""Rows of a wheel's RECORD, edited line by line so that every other byte of it stays.

Added files get rows, so that ``pip uninstall`` removes them.  The rows of changed files stay upstream's
unless ``--update-record`` asks for new ones: the difference is what makes a change visible.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Mapping


def row(path: str, data: bytes) -> bytes:
    """The RECORD row of a file, without line end.  Paths of the registry need no CSV quoting."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return b"%s,sha256=%s,%d" % (path.encode(), digest, len(data))


def edited(
    record: bytes, added: Mapping[str, bytes], changed: Mapping[str, bytes], removed: Collection[str] = ()
) -> bytes:
    """RECORD with other rows for some files.

    :param added: path relative to site-packages -> content; their rows stand last, in order, so that the
        result does not depend on what was added before.
    :param changed: the same; only a row that is there is replaced.
    :param removed: paths whose rows go.
    """
    newline = b"\r\n" if b"\r\n" in record[:4096] else b"\n"
    rows = {path.encode() + b",": row(path, data) for path, data in changed.items()}
    gone = tuple(path.encode() + b"," for path in (*removed, *added))
    lines = []
    for line in record.splitlines(keepends=True):
        if gone and line.startswith(gone):
            continue
        key = line[: line.find(b",") + 1]
        if key in rows:
            text = line.rstrip(b"\r\n")
            line = rows[key] + line[len(text) :]
        lines.append(line)
    if added and lines and not lines[-1].endswith(b"\n"):
        lines[-1] += newline
    return b"".join((*lines, *(row(path, added[path]) + newline for path in sorted(added))))
