"""The steps of a transaction: laid out beside the files, switched, settled or undone, and the journal that says so."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Sequence
from typing import NamedTuple

from fixpack.disk import (
    digest,
    drop_bytecode,
    is_folder,
    is_there,
    read,
    remove_emptied,
    remove_folder,
    unlink,
    write,
)
from fixpack.durable import sync
from fixpack.errors import FixpackError, Problem
from fixpack.journal import JOURNAL, NEW_JOURNAL

#: a longer file name leaves no room for what stands before a temporary one's (most file systems: 255 bytes)
MAX_NAME = 200

PREFIX = ".fixpack-"
SCHEMA = "fixpack.journal/2"

#: what a journal says of its steps: they are being laid out, or they are all there and are being switched
STAGING, SWITCHING = "staging", "switching"


class Change(NamedTuple):
    """One file to write, add or remove."""

    path: str  # resolved
    old: bytes | None  # what was read; None if the file is to be added
    new: bytes | None  # None if the file is to be removed


class WriteError(FixpackError):
    """A file could not be written; everything was put back (exit code 1)."""


class Step(NamedTuple):
    """A change as the journal knows it, with the names that lie beside the file meanwhile."""

    path: str
    old: str  # sha256, "" if the file was not there
    new: str  # sha256, "" if the file is to be removed

    @property
    def temp(self) -> str:
        return _beside(self.path, "new-")

    @property
    def backup(self) -> str:
        return _beside(self.path, "old-")


def _beside(path: str, kind: str) -> str:
    folder, name = os.path.split(path)
    if len(os.fsencode(name)) > MAX_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return os.path.join(folder, f"{PREFIX}{kind}{name}")


def write_journal(roots: Sequence[str], steps: list[Step], made: list[str], phase: str) -> None:
    """Replace the journal.  The first one need not be durable: without it, nothing but temporary files is left."""
    for root in roots:
        body = {
            "schema": SCHEMA,
            "phase": phase,
            "steps": [[os.path.relpath(step.path, root), step.old, step.new] for step in steps],
            "made": [os.path.relpath(folder, root) for folder in made],
        }
        temp = os.path.join(root, NEW_JOURNAL)
        unlink(temp)
        write(temp, json.dumps(body).encode(), None)
        if phase == SWITCHING:
            sync([temp])
        os.replace(temp, os.path.join(root, JOURNAL))
        if phase == SWITCHING:
            sync([root])


def drop_journal(roots: Sequence[str]) -> None:
    """Remove the journal, and one that was being written, from each root."""
    for root in roots:
        for name in (NEW_JOURNAL, JOURNAL):
            unlink(os.path.join(root, name))


def remove_leftovers(folder: str) -> None:
    """What a run that was killed before its journal left behind."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.name.startswith((f"{PREFIX}new-", f"{PREFIX}old-"))]
    for name in names:
        os.unlink(os.path.join(folder, name))


def parents(folders: list[str], made: list[str]) -> list[str]:
    """The folders whose entries a transaction changes: its files' and those in which it makes folders."""
    return sorted({*folders, *(os.path.dirname(folder) for folder in made)})


def stage(change: Change, step: Step) -> None:
    """Put the new bytes and a second name for the old file beside the target."""
    if read(change.path) != change.old:
        raise OSError(errno.EBUSY, "it changed while the fixes were being computed", change.path)
    before = os.stat(change.path, follow_symlinks=False) if change.old is not None else None
    if change.new is not None:
        write(step.temp, change.new, before)
    if change.old is not None and before is not None:
        try:
            os.link(change.path, step.backup, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV):
                raise
            write(step.backup, change.old, before)  # a file system without hard links
            os.utime(step.backup, ns=(before.st_atime_ns, before.st_mtime_ns))


def switch(step: Step) -> None:
    """Old to new: the moment that counts."""
    if step.new:
        os.replace(step.temp, step.path)
    else:
        os.unlink(step.path)
    drop_bytecode(step.path)


def read_back(steps: list[Step]) -> None:
    """Read every file back."""
    for step in steps:
        if digest(read(step.path)) != step.new:
            raise OSError(errno.EIO, "read back other bytes than were written", step.path)


def settle(roots: Sequence[str], steps: list[Step], folders: list[str]) -> None:
    """Drop the second names, make the renames durable, and only then drop the journal."""
    for step in steps:
        unlink(step.backup)
    emptied = {os.path.dirname(step.path) for step in steps if not step.new}
    parents = {parent for folder in emptied if (parent := remove_emptied(folder))}
    sync({folder for folder in (*folders, *parents) if is_folder(folder)})
    drop_journal(roots)


def undo(roots: Sequence[str], steps: list[Step], made: list[str], *, switched: bool) -> list[Problem]:
    """New to old, as far as anything was switched; the journal goes last and only if all went well.

    :param switched: False: no file was, so only what was laid beside them goes.
    """
    problems = []
    for step in reversed(steps):
        try:
            if not switched or (is_there(step.backup) and digest(read(step.path)) == step.old):
                unlink(step.backup)
            elif is_there(step.backup):
                if digest(read(step.backup)) != step.old:
                    raise OSError(errno.EIO, "its second name does not hold the old bytes", step.backup)
                os.replace(step.backup, step.path)
            elif not step.old and step.new and digest(read(step.path)) == step.new:
                os.unlink(step.path)
            if switched:
                drop_bytecode(step.path)
            unlink(step.temp)
        except OSError as error:
            hint = "run the same command again when the cause is gone; it starts by putting this right"
            message = f"could not be put back: {error.strerror}"
            problems.append(Problem("restore_failed", message, file=step.path, hint=hint))
    if not problems:
        try:
            for folder in reversed(made):
                remove_folder(folder)
            kept = {os.path.dirname(step.path) for step in steps} - set(made)
            sync(folder for folder in kept if is_folder(folder))
            drop_journal(roots)
        except OSError as error:
            problems.append(
                Problem("restore_failed", f"could not be cleaned up: {error.strerror}", file=str(error.filename))
            )
    return problems


def unsettled(root: str, error: OSError) -> Problem:
    """What to report when a run that has begun to write can neither be finished nor undone."""
    message = f"cannot finish a run that has begun to write: {error.strerror or error}"
    hint = f"{advice(error)}; the next run starts by finishing or undoing it"
    return Problem("write_unfinished", message, file=str(error.filename or root), hint=hint)


def advice(error: OSError) -> str:
    """What to do about a failed write."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "run as the owner of the files, on a writable file system (in an image build: before USER)"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free space, then run the same command again"
    return "run the same command again; if it fails again, look at the file system"
