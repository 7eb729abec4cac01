"""Make files and folders durable, several at once: a file system commits waiting syncs together."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable
from threading import Thread


def sync(paths: Iterable[str]) -> None:
    """``fsync`` every file and folder, in parallel: ten in turn cost ten commits of the file system's journal.

    :raises OSError: the first failure.
    """
    failures: list[OSError] = []

    def one(path: str) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno == errno.EINVAL and os.path.isdir(path):
                return  # a file system that cannot sync folders writes their entries at once, or has no way to
            failures.append(OSError(error.errno, error.strerror, path))

    waiting = list(paths)
    if not waiting:
        return
    first, *others = waiting
    threads = [Thread(target=one, args=(path,)) for path in others]
    for number, thread in enumerate(threads):
        try:
            thread.start()
        except RuntimeError:  # no more threads for this user
            del threads[number:]
            for path in others[number:]:
                one(path)
            break
    one(first)
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def replace(path: str, data: bytes, *, lasting: bool = True) -> None:
    """Write a file beside its place and rename it: a reader sees the old one or the new one, whole.

    A symbolic link is followed: the file that it leads to is written, and the link stays.  A file keeps its mode; a new
    one gets 0644, less the umask.  The name in between begins with a dot, so that loaders of a folder pass over what a
    killed run leaves, and has a random part, so that nobody can have put anything there.

    :param lasting: whether the file must survive a power cut; what can be made again need not.
    :raises OSError: if it cannot be written, or something other than a file is there; what was there stays.
    """
    real = os.path.realpath(path)
    try:
        old = os.lstat(real).st_mode
    except FileNotFoundError:
        old = 0
    if stat.S_ISDIR(old):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if old and not stat.S_ISREG(old):
        raise OSError(errno.EINVAL, "it is a device, a pipe, a socket or an endless link, not a regular file", path)
    folder, name = os.path.split(real)
    temporary = os.path.join(folder, f".{name[:40]}.{os.urandom(8).hex()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(temporary, flags, 0o600 if old else 0o644), "wb") as file:
        try:
            if old:
                os.fchmod(file.fileno(), stat.S_IMODE(old))
            file.write(data)
            file.flush()
            if lasting:
                os.fsync(file.fileno())
            os.replace(temporary, real)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    if lasting:
        sync([folder])
