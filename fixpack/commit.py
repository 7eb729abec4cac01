"""Write computed results as one transaction: after any crash, the next run makes it all new or all old.

A journal in the target's folder says first what is going to be made.  Then every new file is laid beside its
target as a temporary file, every old one gets a second name (a hard link, so that putting it back keeps
inode, mode and owner), all of it is synced, and the journal says that too.  Then come the renames.
``recover`` finishes a journal that a killed run left behind: forward if every new file is still there,
else backward; one that had only begun is cleaned up.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import signal
import stat
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from fixpack.bytecode import caches, pyc_files
from fixpack.durable import sync
from fixpack.epoch import epoch
from fixpack.errors import FixpackError, Problem
from fixpack.journal import JOURNAL, NEW_JOURNAL
from fixpack.target import read_file

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


class _Step(NamedTuple):
    """A change as the journal knows it."""

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


@contextmanager
def shielded() -> Iterator[None]:
    """Hold SIGINT and SIGTERM back: they take effect before or after a transaction, never within it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def locked(root: str) -> Iterator[None]:
    """Hold the target's folder against other writers.

    The lock is the kernel's, on the folder itself: it needs no file, works on a folder that cannot be
    written, and dies with its process.

    :raises WriteError: if it cannot be locked.
    """
    descriptor = _lock(root)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(root: str) -> int:
    descriptor = -1
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another run on {root}", file=sys.stderr)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        return descriptor
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        message = f"the folder cannot be locked: {error.strerror}"
        raise WriteError(
            Problem("no_lock", message, file=root, hint=f"nothing was changed; {_advice(error)}")
        ) from error


def commit(changes: list[Change], *roots: str) -> None:
    """Make all changes or none.  The caller holds ``locked`` on each root.

    SIGINT and SIGTERM wait until it is done.

    Modes and owners are kept, hard-linked copies stay untouched (every write makes a new inode), and
    no compiled form of a changed file is left.  Each file is read back and compared.

    :param roots: the folders that the journal goes to: each from which a later run may start to look.
    :raises WriteError: if anything failed; then the old files are back, inode and all.
    """
    with shielded():
        _commit(changes, roots)


def _commit(changes: list[Change], roots: Sequence[str]) -> None:
    epoch()  # before anything is written
    steps = [_Step(change.path, _digest(change.old), _digest(change.new)) for change in changes]
    folders = sorted({os.path.dirname(step.path) for step in steps})
    made: list[str] = []
    try:
        made = _missing(folders)
        _write_journal(roots, steps, made, STAGING)
        for folder in made:
            _make_folder(folder)
        for folder in folders:
            _remove_leftovers(folder)
        for change, step in zip(changes, steps, strict=True):
            _stage(change, step)
        staged = [each for step in steps for each in (step.temp, step.backup) if _is_there(each)]
        sync([*staged, *_parents(folders, made)])
        _write_journal(roots, steps, made, SWITCHING)
        for step in steps:
            _switch(step)
        _check(steps)
    except BaseException as error:
        problems = _undo(roots, steps, made, switched=True)
        if not isinstance(error, OSError):
            raise
        reason = error.strerror or str(error)
        hint = ("" if problems else "nothing was changed; ") + _advice(error)
        first = Problem("write_failed", f"cannot write: {reason}", file=str(error.filename or roots[0]), hint=hint)
        raise WriteError(first, *problems) from error
    try:
        _settle(roots, steps, folders, made)
    except OSError as error:  # all files are new; the journal is still there
        raise WriteError(_unsettled(roots[0], error)) from error


def recover(root: str, known: Collection[str]) -> str:
    """Finish what a killed run left behind.  The caller holds ``locked(root)``.

    :param known: the resolved paths of all files that a run on this target may write.  A journal lies in
        the target, which can be somebody else's work; one that names any other file is not acted on.
    :returns: what was done, "" if there was no journal.
    :raises WriteError: if the files are in no state that the journal knows; nothing is changed then.
    """
    journal = os.path.join(root, JOURNAL)
    raw = read_file(journal)
    if raw is None:
        return _forget(root)
    try:
        if isinstance(raw, Problem):
            raise ValueError(raw.message)
        data = json.loads(raw)
        if data["schema"] != SCHEMA or data["phase"] not in (STAGING, SWITCHING):
            raise ValueError(f"its schema is {data['schema']!r}")
        steps = [_Step(os.path.normpath(os.path.join(root, path)), old, new) for path, old, new in data["steps"]]
        made = [os.path.normpath(os.path.join(root, path)) for path in data["made"]]
        _check_known(steps, made, known)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        hint = "run the command that was interrupted once more; if there was none, rebuild from a stock image"
        raise WriteError(
            Problem("journal_invalid", f"cannot use the journal: {error}", file=journal, hint=hint)
        ) from error
    try:
        with shielded():
            return _recover((root,), steps, made, data["phase"])
    except OSError as error:
        raise WriteError(_unsettled(root, error)) from error


def _unsettled(root: str, error: OSError) -> Problem:
    message = f"cannot finish a run that has begun to write: {error.strerror or error}"
    hint = f"{_advice(error)}; the next run starts by finishing or undoing it"
    return Problem("write_unfinished", message, file=str(error.filename or root), hint=hint)


def _check_known(steps: list[_Step], made: list[str], known: Collection[str]) -> None:
    for step in steps:
        folder, name = os.path.split(step.path)
        if os.path.join(os.path.realpath(folder), name) not in known:
            raise ValueError(f"it names {step.path}, which is no file of this profile")
        if not all(digest == "" or re.fullmatch("[0-9a-f]{64}", digest) for digest in (step.old, step.new)):
            raise ValueError(f"it has no sha256 for {step.path}")
    for folder in made:
        if not any(step.path.startswith(folder + os.sep) for step in steps):
            raise ValueError(f"it names the folder {folder}, which holds no file of this run")


def _forget(root: str) -> str:
    """Remove a journal that was never finished: nothing was done yet."""
    path = os.path.join(root, NEW_JOURNAL)
    try:
        if _is_there(path):  # on a read-only file system, removing nothing fails too
            os.unlink(path)
    except OSError as error:
        raise WriteError(_unsettled(root, error)) from error
    return ""


def _recover(roots: Sequence[str], steps: list[_Step], made: list[str], phase: str) -> str:
    if phase == STAGING:
        problems = _undo(roots, steps, made, switched=False)
        if problems:
            raise WriteError(*problems)
        return "cleaned up after an interrupted run that had changed nothing"
    now = {step.path: _digest(_read(step.path)) for step in steps}
    strange = [step for step in steps if now[step.path] not in (step.old, step.new)]
    if strange:
        hint = (
            f"put the old file back from {PREFIX}old-* beside it, or rebuild from a stock image; then remove {JOURNAL}"
        )
        raise WriteError(
            *(
                Problem(
                    "journal_conflict",
                    "an interrupted run left it, and it was changed since",
                    file=step.path,
                    hint=hint,
                )
                for step in strange
            )
        )
    folders = sorted({os.path.dirname(step.path) for step in steps})
    pending = [step for step in steps if now[step.path] != step.new]
    if all(step.new == "" or _digest(_read(step.temp)) == step.new for step in pending):
        for step in pending:
            _switch(step)
        for step in steps:  # the kill may have come between a rename and this
            _drop_bytecode(step.path)
        _check(steps)
        _settle(roots, steps, folders, made)
        return f"finished an interrupted run: {len(pending)} of {len(steps)} files were still to be written"
    problems = _undo(roots, steps, made, switched=True)
    if problems:
        raise WriteError(*problems)
    return f"undid an interrupted run: {len(steps)} files are as they were before it"


# -- steps ------------------------------------------------------------------------------------------------------------


def _stage(change: Change, step: _Step) -> None:
    """Put the new bytes and a second name for the old file beside the target."""
    if _read(change.path) != change.old:
        raise OSError(errno.EBUSY, "it changed while the fixes were being computed", change.path)
    before = os.stat(change.path, follow_symlinks=False) if change.old is not None else None
    if change.new is not None:
        _write(step.temp, change.new, before)
    if change.old is not None and before is not None:
        try:
            os.link(change.path, step.backup, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV):
                raise
            _write(step.backup, change.old, before)  # a file system without hard links
            os.utime(step.backup, ns=(before.st_atime_ns, before.st_mtime_ns))


def _switch(step: _Step) -> None:
    """Old to new: the moment that counts."""
    if step.new:
        os.replace(step.temp, step.path)
    else:
        os.unlink(step.path)
    _drop_bytecode(step.path)


def _check(steps: list[_Step]) -> None:
    """Read every file back."""
    for step in steps:
        if _digest(_read(step.path)) != step.new:
            raise OSError(errno.EIO, "read back other bytes than were written", step.path)


def _settle(roots: Sequence[str], steps: list[_Step], folders: list[str], made: list[str]) -> None:
    """Drop the second names, make the renames durable, and only then drop the journal."""
    for step in steps:
        _unlink(step.backup)
    emptied = {os.path.dirname(step.path) for step in steps if not step.new}
    parents = {parent for folder in emptied if (parent := _remove_emptied(folder))}
    sync({folder for folder in (*folders, *parents) if _is_folder(folder)})
    _drop_journal(roots)
    _date({*roots, *parents, *_parents(folders, made), *(each for step in steps for each in caches(step.path))})


def _date(folders: Collection[str]) -> None:
    """Give folders in which names came and went the time that the files got: a layer of an image holds it too."""
    when = epoch()
    if when is None:
        return
    for folder in folders:
        with suppress(FileNotFoundError, PermissionError):  # emptied and gone; or another user's, who may alone do it
            os.utime(folder, (when, when))


def _undo(roots: Sequence[str], steps: list[_Step], made: list[str], *, switched: bool) -> list[Problem]:
    """New to old, as far as anything was switched; the journal goes last and only if all went well.

    :param switched: False: no file was, so only what was laid beside them goes.
    """
    problems = []
    for step in reversed(steps):
        try:
            if not switched or (_is_there(step.backup) and _digest(_read(step.path)) == step.old):
                _unlink(step.backup)
            elif _is_there(step.backup):
                if _digest(_read(step.backup)) != step.old:
                    raise OSError(errno.EIO, "its second name does not hold the old bytes", step.backup)
                os.replace(step.backup, step.path)
            elif not step.old and step.new and _digest(_read(step.path)) == step.new:
                os.unlink(step.path)
            if switched:
                _drop_bytecode(step.path)
            _unlink(step.temp)
        except OSError as error:
            hint = "run the same command again when the cause is gone; it starts by putting this right"
            message = f"could not be put back: {error.strerror}"
            problems.append(Problem("restore_failed", message, file=step.path, hint=hint))
    if not problems:
        try:
            for folder in reversed(made):
                _remove_folder(folder)
            kept = {os.path.dirname(step.path) for step in steps} - set(made)
            sync(folder for folder in kept if _is_folder(folder))
            _drop_journal(roots)
        except OSError as error:
            problems.append(
                Problem("restore_failed", f"could not be cleaned up: {error.strerror}", file=str(error.filename))
            )
    return problems


def _drop_journal(roots: Sequence[str]) -> None:
    for root in roots:
        for name in (NEW_JOURNAL, JOURNAL):
            _unlink(os.path.join(root, name))


def _write_journal(roots: Sequence[str], steps: list[_Step], made: list[str], phase: str) -> None:
    """Replace the journal.  The first one need not be durable: without it, nothing but temporary files is left."""
    for root in roots:
        body = {
            "schema": SCHEMA,
            "phase": phase,
            "steps": [[os.path.relpath(step.path, root), step.old, step.new] for step in steps],
            "made": [os.path.relpath(folder, root) for folder in made],
        }
        temp = os.path.join(root, NEW_JOURNAL)
        _unlink(temp)
        _write(temp, json.dumps(body).encode(), None)
        if phase == SWITCHING:
            sync([temp])
        os.replace(temp, os.path.join(root, JOURNAL))
        if phase == SWITCHING:
            sync([root])


# -- files ------------------------------------------------------------------------------------------------------------


def _is_there(path: str) -> bool:
    """As ``os.path.lexists``, which takes every error for a no."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


def _is_folder(path: str) -> bool:
    """As ``os.path.isdir``, which takes every error for a no."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except FileNotFoundError:
        return False


def _digest(data: bytes | None) -> str:
    return "" if data is None else hashlib.sha256(data).hexdigest()


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _write(path: str, data: bytes, like: os.stat_result | None) -> None:
    """A new file, with the mode and owner of ``like`` or the folder's owner and 0644."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        _own(descriptor, like or os.stat(os.path.dirname(path)))
        os.fchmod(descriptor, stat.S_IMODE(like.st_mode) if like else 0o644)
        when = epoch()
        if when is not None:
            os.utime(path, (when, when))
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        os.close(descriptor)


def _own(descriptor: int, like: os.stat_result) -> None:
    now = os.fstat(descriptor)
    if (now.st_uid, now.st_gid) != (like.st_uid, like.st_gid):
        os.fchown(descriptor, like.st_uid, like.st_gid)


def _missing(folders: list[str]) -> list[str]:
    """Folders that are not there yet, outer ones first."""
    missing: list[str] = []
    for folder in folders:
        while not _is_folder(folder):
            if folder not in missing:
                missing.append(folder)
            folder = os.path.dirname(folder)
    return sorted(missing, key=len)


def _make_folder(folder: str) -> None:
    """A folder with the owner of the one above it and mode 0755."""
    os.mkdir(folder, 0o755)
    like = os.stat(os.path.dirname(folder))
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _own(descriptor, like)
        os.fchmod(descriptor, 0o755)
    finally:
        os.close(descriptor)


def _remove_folder(folder: str) -> None:
    if not _is_folder(folder):
        return
    cache = "__pycache__"
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    if names == [cache]:
        os.rmdir(os.path.join(folder, cache))
    elif names:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), folder)
    os.rmdir(folder)


def _remove_emptied(folder: str) -> str:
    """Remove a folder from which the last file went, and its parents if they are empty then.

    :returns: the folder in which something was removed, "" if nothing was.
    """
    changed = ""
    while True:  # ends at the latest at the package's folder, which holds upstream's files
        try:
            _remove_folder(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return changed
        folder = changed = os.path.dirname(folder)


def _remove_leftovers(folder: str) -> None:
    """What a run that was killed before its journal left behind."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.name.startswith((f"{PREFIX}new-", f"{PREFIX}old-"))]
    for name in names:
        os.unlink(os.path.join(folder, name))


def _parents(folders: list[str], made: list[str]) -> list[str]:
    return sorted({*folders, *(os.path.dirname(folder) for folder in made)})


def _unlink(path: str) -> None:
    """Remove a name if it is there; on a read-only file system, removing what is not there fails too."""
    if _is_there(path):
        os.unlink(path)


def _drop_bytecode(path: str) -> None:
    if path.endswith(".py"):
        for pyc in pyc_files(path):
            _unlink(pyc)


def _advice(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "run as the owner of the files, on a writable file system (in an image build: before USER)"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free space, then run the same command again"
    return "run the same command again; if it fails again, look at the file system"
