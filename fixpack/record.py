"""Rows of a wheel's RECORD for the files that fixes add, so that ``pip uninstall`` removes them.

The rows of changed files stay upstream's: the difference is what makes tampering visible.
"""

from __future__ import annotations

import base64
import hashlib


def row(path: str, data: bytes) -> bytes:
    """The RECORD row of a file, without line end.  Paths of the registry need no CSV quoting."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return b"%s,sha256=%s,%d" % (path.encode(), digest, len(data))


def with_rows(record: bytes, added: dict[str, bytes]) -> bytes:
    """RECORD with a row for each added file; rows of the same path are replaced.

    :param added: path relative to site-packages -> content.
    """
    newline = b"\r\n" if b"\r\n" in record[:4096] else b"\n"
    prefixes = tuple(path.encode() + b"," for path in added)
    lines = [line for line in record.split(b"\n") if line.strip() and not line.startswith(prefixes)]
    kept = b"".join(line.rstrip(b"\r") + newline for line in lines)
    return kept + b"".join(row(path, data) + newline for path, data in sorted(added.items()))
