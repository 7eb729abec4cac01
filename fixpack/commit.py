"""Write computed results: a temporary file beside each target, fsync, rename; on failure put all back."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from fixpack.bytecode import pyc_files
from fixpack.errors import FixpackError, Problem

TEMP_PREFIX = ".fixpack-"


class Change(NamedTuple):
    """One file to write."""

    path: str  # resolved
    old: bytes | None  # what was read; None if the file is to be added
    new: bytes


class WriteError(FixpackError):
    """A file could not be written; everything was put back (exit code 1)."""


def commit(changes: list[Change]) -> None:
    """Make all changes or none.

    Modes and owners are kept, hard-linked copies stay untouched (every write makes a new inode), and
    no compiled form of a changed file is left.  Each file is read back and compared.

    :raises WriteError: if anything failed; what had been written is the old bytes again.
    """
    done: list[Change] = []
    folders: list[str] = []
    try:
        for change in changes:
            _make_folder(os.path.dirname(change.path), folders)
            if change.old is not None and _read(change.path) != change.old:
                raise OSError(0, "it changed while the fixes were being computed", change.path)
            if change.old is None and os.path.lexists(change.path):
                raise OSError(0, "it appeared while the fixes were being computed", change.path)
            done.append(change)
            _replace(change.path, change.new)
            _drop_bytecode(change.path)
        for change in changes:
            if _read(change.path) != change.new:
                raise OSError(0, "read back other bytes than were written", change.path)
    except BaseException as error:
        problems = _restore(done, folders)
        if not isinstance(error, OSError):
            raise
        reason = error.strerror or str(error)
        where = error.filename or (done[-1].path if done else "")
        hint = "nothing was changed; " if not problems else ""
        first = Problem("write_failed", f"cannot write: {reason}", file=str(where), hint=hint + _advice(error))
        raise WriteError(first, *problems) from error


def _advice(error: OSError) -> str:
    if isinstance(error, PermissionError) or error.errno == 30:  # EROFS
        return "run as the owner of the files, on a writable file system (in an image build: before USER)"
    return "free space or repair the file system, then run the same command again"


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _make_folder(folder: str, made: list[str]) -> None:
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for each in reversed(missing):
        like = os.stat(os.path.dirname(each))
        os.mkdir(each, 0o755)
        made.append(each)
        _own(each, like)


def _replace(path: str, data: bytes) -> None:
    """New bytes under a path, by rename, with the mode and owner of what was there."""
    folder, name = os.path.split(path)
    try:
        before: os.stat_result | None = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        before = None
    temp = os.path.join(folder, f"{TEMP_PREFIX}{name}.{os.getpid()}.tmp")
    descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            _own(temp, before or os.stat(folder))
            os.chmod(temp, stat.S_IMODE(before.st_mode) if before else 0o644)
            epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
            if epoch.isdigit():
                os.utime(temp, (int(epoch), int(epoch)))
            os.fsync(file.fileno())
        os.replace(temp, path)
    except BaseException:
        if os.path.lexists(temp):
            os.unlink(temp)
        raise
    _sync_folder(folder)


def _own(path: str, like: os.stat_result) -> None:
    now = os.stat(path, follow_symlinks=False)
    if (now.st_uid, now.st_gid) != (like.st_uid, like.st_gid):
        os.chown(path, like.st_uid, like.st_gid, follow_symlinks=False)


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _drop_bytecode(path: str) -> None:
    if path.endswith(".py"):
        for pyc in pyc_files(path):
            os.unlink(pyc)


def _restore(done: list[Change], folders: list[str]) -> list[Problem]:
    """Put back the old bytes of every change that may have been made."""
    problems = []
    for change in reversed(done):
        try:
            if change.old is None:
                if os.path.lexists(change.path):
                    os.unlink(change.path)
            elif _read(change.path) != change.old:
                _replace(change.path, change.old)
        except OSError as error:
            message = f"could not be put back: {error.strerror}"
            problems.append(Problem("restore_failed", message, file=change.path, hint="rebuild from a stock image"))
    for folder in reversed(folders):
        try:
            os.rmdir(folder)
        except OSError as error:
            problems.append(Problem("restore_failed", f"cannot remove it: {error.strerror}", file=folder))
    return problems
