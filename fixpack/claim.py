"""Take a target for writing: its folders, in one order, and what a killed run left in them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack

from fixpack import receipt
from fixpack.hold import locked
from fixpack.journal import pending
from fixpack.lock import Lock
from fixpack.recovery import recover
from fixpack.steps import Change
from fixpack.target import Target, resolve


def take(target: Target, locks: ExitStack, lock: Lock, more: Iterable[tuple[str, str]] = ()) -> list[str]:
    """Lock a target for writing, and finish or undo what a killed run left in it.

    :param locks: holds the locks until it is closed.
    :param more: (distribution, path) of files that the lock does not know and this run may write all the same.
    :returns: what was done.
    """
    roots = roots_of(target)
    for each in roots:
        locks.enter_context(locked(each))
    known = writable(target, lock)
    known |= {real for name, path in more if isinstance(real := resolve(target, name, path), str)}
    return [note for each in roots if (note := recover(each, known))]


def settle(target: Target, lock: Lock) -> tuple[str, ...]:
    """Finish or undo what a killed run left in a target.  Without such a run, nothing is locked or written.

    :returns: what was done.
    :raises WriteError: if it cannot be done.
    """
    with ExitStack() as locks:
        return tuple(take(target, locks, lock)) if any(pending(each) for each in roots_of(target)) else ()


def roots_of(target: Target) -> list[str]:
    """The folders that hold the target's packages, each once, in the order in which they are locked."""
    return sorted({located.root for located in target.located.values()})


def journal_roots(target: Target, changes: Sequence[Change]) -> list[str]:
    """The folders that a transaction's journal goes to: each root in which it changes a file."""
    roots = roots_of(target)
    return [root for root in roots if any(each.path.startswith(root + os.sep) for each in changes)] or roots[:1]


def writable(target: Target, lock: Lock) -> set[str]:
    """The resolved path of every file that a run on this target may write."""
    paths = set()
    for distribution, release in lock["releases"].items():
        located = target.located.get(distribution)
        if located is None:
            continue
        names = [*release["files"], os.path.relpath(receipt.path_in(located), located.root)]
        if located.dist_info:
            names.append(os.path.join(os.path.basename(located.dist_info), "RECORD"))
        paths |= {real for name in names if isinstance(real := resolve(target, distribution, name), str)}
    return paths
