"""Throw-away copies of upstream trees for the prover: hard links where that works, digests always."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from typing import NamedTuple

_CANNOT_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EACCES, errno.ENOTSUP)
_BYTECODE = "__pycache__"


class Stamp(NamedTuple):
    """What tells a file's bytes apart without reading it."""

    device: int
    inode: int
    size: int
    mtime_ns: int


def clone(source: str, target: str) -> None:
    """Copy the tree ``source`` to the new folder ``target``, by hard links where the file system has them.

    Symbolic links are copied as such.  Raises OSError.
    """
    link = True
    for folder, names, files in os.walk(source):
        into = os.path.join(target, os.path.relpath(folder, source))
        os.makedirs(into, exist_ok=True)
        for name in [name for name in names if os.path.islink(os.path.join(folder, name))]:
            names.remove(name)
            files.append(name)
        for name in files:
            link = _place(os.path.join(folder, name), os.path.join(into, name), link)


def _place(source: str, target: str, link: bool) -> bool:
    """Link or copy one file; returns whether linking is worth another try."""
    if link:
        try:
            os.link(source, target, follow_symlinks=False)
            return True
        except OSError as error:
            if error.errno not in _CANNOT_LINK:
                raise
    shutil.copy2(source, target, follow_symlinks=False)
    return False


def lend_bytecode(source: str, target: str) -> None:
    """Give the copy ``target`` the bytecode that a run left in the copy ``source`` of the same tree.

    Python checks each against its source's time stamp, and whoever changes a file drops its bytecode.
    """
    for folder, names, _ in os.walk(source):
        into = os.path.join(target, os.path.relpath(folder, source))
        if _BYTECODE in names and os.path.isdir(into):
            clone(os.path.join(folder, _BYTECODE), os.path.join(into, _BYTECODE))


class Digester:
    """Sha256 of whole trees; a file that several trees share by hard link is read once."""

    def __init__(self) -> None:
        self._known: dict[Stamp, str] = {}

    def file(self, path: str, fresh: bool = False) -> str:
        """The sha256 of one file's bytes (of a symbolic link: of its target's name)."""
        status = os.lstat(path)
        stamp = Stamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if fresh or stamp not in self._known:
            if os.path.islink(path):
                self._known[stamp] = hashlib.sha256(os.fsencode(os.readlink(path))).hexdigest()
            else:
                with open(path, "rb") as handle:
                    self._known[stamp] = hashlib.sha256(handle.read()).hexdigest()
        return self._known[stamp]

    def tree(self, root: str, fresh: bool = False) -> str:
        """The sha256 over the sorted paths and sha256 of all files below ``root``.

        Left out: bytecode, and what this program itself notes at the top, which tells of this machine.

        ``fresh`` reads every file again, for a check that must not trust time stamps.
        """
        lines = []
        for folder, names, files in os.walk(root):
            names[:] = [name for name in names if name != _BYTECODE]
            for name in files:
                if folder == root and name.startswith(".fixpack-"):
                    continue
                path = os.path.join(folder, name)
                lines.append(f"{os.path.relpath(path, root)}\0{self.file(path, fresh)}\n")
        return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()
