"""What is written beside the fixed files, in the same transaction: the receipt and the rows of RECORD."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence

from fixpack import receipt
from fixpack.errors import MismatchError, Problem
from fixpack.lock import Lock
from fixpack.record import edited, row
from fixpack.steps import Change
from fixpack.target import Located, Target, read_file, resolve


def entries(
    lock: Lock,
    target: Target,
    distribution: str,
    fixes: Sequence[str],
    before: Mapping[str, tuple[str, bytes | None, bytes | None]],
    after: Mapping[str, bytes | None],
    *,
    changed: bool,
    update_record: bool,
) -> list[Change]:
    """The changes of a distribution's receipt and RECORD that go with the changes of its files.

    :param fixes: the fixes that are in it afterwards.
    :param before: path -> real path, content now, pinned base.
    :param after: path -> content afterwards; None for a file that is removed.
    :param changed: whether any file changes; if not, the receipt stays as it is.
    :raises MismatchError: if the receipt's or RECORD's place leads out of the target.
    """
    located = target.located.get(distribution)
    if located is None:
        return []
    record_path = _inside(target, located, "RECORD") if located.dist_info else ""
    record = read_file(record_path) if record_path else None
    if isinstance(record, Problem):
        raise MismatchError(record)
    new = record  # None: some packagers install without RECORD
    policy = "none" if new is None else ("updated-rows" if update_record else "added-rows")
    added = {path: data for path, data in after.items() if data is not None and before[path][2] is None}
    kept = {
        path: receipt.Kept(before[path][2], data, _mode(before[path][0]))
        for path, data in after.items()
        if data is not None and data != before[path][2]
    }
    changes = []
    removed = [path for path, data in after.items() if data is None]
    place = _inside(target, located, os.path.basename(receipt.path_in(located)))
    old = read_file(place)
    if isinstance(old, Problem):
        raise MismatchError(old._replace(hint="remove it, then run the same command again"))
    content = old
    if changed or removed:
        content = receipt.make(lock, located, fixes, kept, record=policy) if kept else None
    if old != content:
        changes.append(Change(place, old, content))
    name = os.path.relpath(receipt.path_in(located), located.root)
    if content is not None:
        added[name] = content
    else:
        removed.append(name)
    if new is not None:
        rows = _rows(new, before, after, update_record)
        final = edited(new, added, rows, removed)
        if final != new:
            changes.append(Change(record_path, new, final))
    return changes


def _rows(
    record: bytes,
    before: Mapping[str, tuple[str, bytes | None, bytes | None]],
    after: Mapping[str, bytes | None],
    update: bool,
) -> dict[str, bytes]:
    """The changed files whose row is to follow: all, if that was asked for; else those whose row followed before."""
    rows = {}
    for path, data in after.items():
        now, base = before[path][1:]
        if data is None or base is None:
            continue
        follows = now is not None and now != base and row(path, now) + b"\n" in record.replace(b"\r\n", b"\n")
        if update or follows:
            rows[path] = data
    return rows


def _inside(target: Target, located: Located, name: str) -> str:
    folder = os.path.relpath(located.dist_info or located.root, located.root)
    real = resolve(target, located.distribution, os.path.normpath(os.path.join(folder, name)))
    if isinstance(real, Problem):
        raise MismatchError(real)
    return real


def _mode(real: str) -> int:
    try:
        return stat.S_IMODE(os.stat(real, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return 0o644
