"""Hold a target's folder against other writers, and signals back."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fixpack.errors import Problem
from fixpack.steps import WriteError, advice


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
            Problem("no_lock", message, file=root, hint=f"nothing was changed; {advice(error)}")
        ) from error
