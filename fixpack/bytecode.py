"""Compiled bytecode of a changed file: find it, judge it, remove it."""

from __future__ import annotations

import os
import stat
import sys

from fixpack.errors import Problem


def pyc_files(path: str) -> list[str]:
    """Every compiled form of a source file: all tags and optimisation levels, beside it and below a prefix.

    What Python cannot run, because it is no ordinary file, is left out.

    :raises OSError: if a folder cannot be listed.
    """
    found = []
    for cache in caches(path):
        try:
            names = os.listdir(cache)
        except (FileNotFoundError, NotADirectoryError):
            continue
        stem = os.path.basename(path)[: -len(".py")] + "."
        candidates = (os.path.join(cache, each) for each in sorted(names) if each.startswith(stem))
        found += [each for each in candidates if each.endswith(".pyc") and stat.S_ISREG(os.lstat(each).st_mode)]
    return found


def caches(path: str) -> list[str]:
    """The folders in which compiled forms of a source file lie, if there are any: beside it and below a prefix."""
    folder = os.path.dirname(path)
    caches = [os.path.join(folder, "__pycache__")]
    if sys.pycache_prefix:
        caches.append(os.path.join(sys.pycache_prefix, folder.lstrip(os.sep)))
    return caches


def outside(path: str) -> list[Problem]:
    """Why the bytecode of a file that is to be changed cannot be removed: its folder is a symbolic link."""
    return [
        Problem("leaves_target", "the bytecode's folder is a symbolic link", file=cache, hint="remove the link")
        for cache in caches(path)
        if os.path.islink(cache)
    ]


def unchecked(path: str, data: bytes) -> list[Problem]:
    """Compiled forms that Python runs without looking at the source and that are not made from it.

    A pyc with flag bits 0b01 carries a hash of its source and is never checked (PEP 552).  One that this
    user cannot read is none of his: his Python passes it over too.
    """
    problems = []
    try:
        found = pyc_files(path)
    except PermissionError:
        return []
    for pyc in found:
        try:
            with open(pyc, "rb") as file:
                head = file.read(16)
        except (PermissionError, FileNotFoundError):
            continue
        except OSError as error:
            problems.append(Problem("unreadable", f"bytecode cannot be read: {error.strerror}", file=pyc))
            continue
        if len(head) == 16 and int.from_bytes(head[4:8], "little") & 0b11 == 0b01:
            from importlib.util import source_hash

            if source_hash(data) != head[8:16]:
                message = "stale bytecode that Python would run instead of the file"
                problems.append(Problem("stale_bytecode", message, file=pyc, hint="remove it"))
    return problems
