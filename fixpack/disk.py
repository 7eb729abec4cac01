"""Files and folders as a transaction needs them: an error is never taken for a no, nothing is written in place."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat

from fixpack.bytecode import pyc_files


def is_there(path: str) -> bool:
    """As ``os.path.lexists``, which takes every error for a no."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


def is_folder(path: str) -> bool:
    """As ``os.path.isdir``, which takes every error for a no."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except FileNotFoundError:
        return False


def digest(data: bytes | None) -> str:
    """Sha256 in hex; "" for a file that is not there."""
    return "" if data is None else hashlib.sha256(data).hexdigest()


def read(path: str) -> bytes | None:
    """The bytes of a file; None if it is not there."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def write(path: str, data: bytes, like: os.stat_result | None) -> None:
    """A new file, with the mode and owner of ``like`` or the folder's owner and 0644."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        _own(descriptor, like or os.stat(os.path.dirname(path)))
        os.fchmod(descriptor, stat.S_IMODE(like.st_mode) if like else 0o644)
        epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
        if re.fullmatch("[0-9]{1,11}", epoch):
            os.utime(path, (int(epoch), int(epoch)))
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        os.close(descriptor)


def _own(descriptor: int, like: os.stat_result) -> None:
    now = os.fstat(descriptor)
    if (now.st_uid, now.st_gid) != (like.st_uid, like.st_gid):
        os.fchown(descriptor, like.st_uid, like.st_gid)


def missing_folders(folders: list[str]) -> list[str]:
    """Folders that are not there yet, outer ones first."""
    missing: list[str] = []
    for folder in folders:
        while not is_folder(folder):
            if folder not in missing:
                missing.append(folder)
            folder = os.path.dirname(folder)
    return sorted(missing, key=len)


def make_folder(folder: str) -> None:
    """A folder with the owner of the one above it and mode 0755."""
    os.mkdir(folder, 0o755)
    like = os.stat(os.path.dirname(folder))
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _own(descriptor, like)
        os.fchmod(descriptor, 0o755)
    finally:
        os.close(descriptor)


def remove_folder(folder: str) -> None:
    """Remove a folder that holds nothing, or nothing but an empty cache of bytecode, if it is there."""
    if not is_folder(folder):
        return
    cache = "__pycache__"
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    if names == [cache]:
        os.rmdir(os.path.join(folder, cache))
    elif names:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), folder)
    os.rmdir(folder)


def remove_emptied(folder: str) -> str:
    """Remove a folder from which the last file went, and its parents if they are empty then.

    :returns: the folder in which something was removed, "" if nothing was.
    """
    changed = ""
    while True:  # ends at the latest at the package's folder, which holds upstream's files
        try:
            remove_folder(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return changed
        folder = changed = os.path.dirname(folder)


def unlink(path: str) -> None:
    """Remove a name if it is there; on a read-only file system, removing what is not there fails too."""
    if is_there(path):
        os.unlink(path)


def drop_bytecode(path: str) -> None:
    """Remove every compiled form of a source file."""
    if path.endswith(".py"):
        for pyc in pyc_files(path):
            unlink(pyc)
