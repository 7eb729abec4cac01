"""Make files and folders durable, several at once: a file system commits waiting syncs together."""

from __future__ import annotations

import contextlib
import errno
import os
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


def replace(path: str, data: bytes) -> None:
    """Write a file beside its place and rename it: a reader sees the old one or the new one, whole.

    The name in between begins with a dot, so that loaders of a folder pass over what a killed run leaves.

    :raises OSError: if it cannot be written; what was there stays.
    """
    folder, name = os.path.split(os.path.abspath(path))
    temporary = os.path.join(folder, f".{name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
        sync([temporary])
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync([folder])
