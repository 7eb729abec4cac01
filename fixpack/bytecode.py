"""Compiled bytecode of a changed file: find it, judge it, remove it."""

from __future__ import annotations

import os
import sys

from fixpack.errors import Problem


def pyc_files(path: str) -> list[str]:
    """Every compiled form of a source file: all tags and optimisation levels, beside it and below a prefix."""
    folder, name = os.path.split(path)
    stem = name[: -len(".py")] + "."
    folders = [os.path.join(folder, "__pycache__")]
    if sys.pycache_prefix:
        folders.append(os.path.join(sys.pycache_prefix, folder.lstrip(os.sep)))
    found = []
    for cache in folders:
        try:
            names = os.listdir(cache)
        except (FileNotFoundError, NotADirectoryError):
            continue
        found += [
            os.path.join(cache, each) for each in sorted(names) if each.startswith(stem) and each.endswith(".pyc")
        ]
    return found


def unchecked(path: str, data: bytes) -> list[Problem]:
    """Compiled forms that Python runs without looking at the source and that are not made from it.

    A pyc with flag bits 0b01 carries a hash of its source and is never checked (PEP 552).
    """
    problems = []
    for pyc in pyc_files(path):
        try:
            with open(pyc, "rb") as file:
                head = file.read(16)
        except OSError as error:
            problems.append(Problem("unreadable", f"bytecode cannot be read: {error.strerror}", file=pyc))
            continue
        if len(head) == 16 and int.from_bytes(head[4:8], "little") & 0b11 == 0b01:
            from importlib.util import source_hash

            if source_hash(data) != head[8:16]:
                message = "stale bytecode that Python would run instead of the file"
                problems.append(Problem("stale_bytecode", message, file=pyc, hint="remove it"))
    return problems
