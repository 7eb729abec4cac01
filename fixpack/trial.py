"""A scratch copy of pinned releases, laid out as pip installs them, and what an apply changed in it."""

from __future__ import annotations

import base64
import csv
import difflib
import hashlib
import io
import os
import re
import shutil
from collections.abc import Sequence
from typing import NamedTuple

from fixpack import sources
from fixpack.cache import failed_write
from fixpack.errors import Problem, SourceError, UsageError
from fixpack.model import Release
from fixpack.payload import MARKER
from fixpack.target import read_file


class Region(NamedTuple):
    """What one edit of a fix put into a file."""

    fix: str
    path: str
    anchor: str  # "file" for a module of the fix's own
    line: int  # 1-based, of its first marker
    lines: int  # without the markers


class Changed(NamedTuple):
    """A file of the copy that is not as it was laid out."""

    path: str
    new: bool
    added: int
    removed: int


def prepare(folder: str) -> str:
    """The folder as absolute path, made if it is not there.  Raises: UsageError if it holds anything."""
    path = os.path.abspath(folder)
    try:
        os.makedirs(path, exist_ok=True)
        held = os.listdir(path)
    except OSError as error:
        raise UsageError(Problem("bad_folder", f"{folder}: {error.strerror}", hint="name another --dir")) from error
    if held:
        message = f"{folder} is not empty: a trial only works in a folder of its own"
        raise UsageError(Problem("folder_not_empty", message, file=path, hint="name an empty or new --dir"))
    return path


def lay_out(releases: Sequence[Release], site: str) -> dict[str, str]:
    """Copy the releases' packages from the cache into a folder as pip would have installed them.

    Out: path -> sha256 of every package file.  Raises: SourceError when one is not in the cache, or the
    folder cannot be written.
    """
    laid = {}
    for release in releases:
        tree = sources.tree(release)
        try:
            shutil.copytree(
                os.path.join(tree, release.package),
                os.path.join(site, release.package),
                symlinks=True,
                ignore=shutil.ignore_patterns("__pycache__"),
            )
            files = hashes(site, release.package)
            laid.update(files)
            _write_dist_info(release, tree, site, files)
        except OSError as error:
            raise SourceError(failed_write(error, site)) from error
    return laid


def _write_dist_info(release: Release, tree: str, site: str, files: dict[str, str]) -> None:
    """What makes a folder an installed distribution: METADATA, INSTALLER, RECORD."""
    folder = f"{re.sub(r'[-_.]+', '_', release.distribution)}-{release.version}.dist-info"
    os.mkdir(os.path.join(site, folder))
    try:
        with open(os.path.join(tree, "PKG-INFO"), "rb") as file:
            metadata = file.read()
    except FileNotFoundError:  # a git tree
        metadata = f"Metadata-Version: 2.1\nName: {release.distribution}\nVersion: {release.version}\n".encode()
    for name, data in {"METADATA": metadata, "INSTALLER": b"fixpack try\n"}.items():
        with open(os.path.join(site, folder, name), "wb") as file:
            file.write(data)
        files = {**files, f"{folder}/{name}": hashlib.sha256(data).hexdigest()}
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    for path, digest in sorted(files.items()):
        encoded = base64.urlsafe_b64encode(bytes.fromhex(digest)).decode().rstrip("=")
        rows.writerow((path, f"sha256={encoded}", os.path.getsize(os.path.join(site, path))))
    rows.writerow((f"{folder}/RECORD", "", ""))
    with open(os.path.join(site, folder, "RECORD"), "w", encoding="utf-8", newline="") as out:
        out.write(table.getvalue())


def hashes(site: str, package: str) -> dict[str, str]:
    """The sha256 of every file of a package, by its path in the folder that holds it.

    Raises: SourceError for what is no ordinary file.
    """
    found = {}
    for folder, _, names in os.walk(os.path.join(site, package)):
        for name in names:
            full = os.path.join(folder, name)
            data = os.fsencode(os.readlink(full)) if os.path.islink(full) else read_file(full)
            if not isinstance(data, bytes):
                raise SourceError(data or Problem("not_a_file", "is gone", file=full))
            found[os.path.relpath(full, site)] = hashlib.sha256(data).hexdigest()
    return found


def changes(releases: Sequence[Release], site: str, laid: dict[str, str]) -> tuple[list[Changed], list[Region]]:
    """Compare every file of the copy with what was laid out, by content; and find the fixes' regions."""
    changed, regions = [], []
    for release in releases:
        tree = sources.tree(release)
        now = hashes(site, release.package)
        before = {path: digest for path, digest in laid.items() if path.startswith(f"{release.package}/")}
        for path in sorted(now.keys() | before.keys()):
            if now.get(path) == before.get(path):
                continue
            old = _lines(os.path.join(tree, path)) if path in before else []
            new = _lines(os.path.join(site, path)) if path in now else []
            delta = list(difflib.unified_diff(old, new, lineterm="", n=0))[2:]
            added, removed = (sum(line.startswith(sign) for line in delta) for sign in "+-")
            changed.append(Changed(path, path not in before, added, removed))
            regions += _regions(path, os.path.join(site, path)) if path in now else []
    return changed, regions


def _lines(path: str) -> list[str]:
    with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
        return file.read().splitlines()


def _regions(path: str, full: str) -> list[Region]:
    """The bracketed regions of a file, in its order."""
    regions = []
    begun: tuple[tuple[bytes, ...], int] | None = None
    data = read_file(full)
    assert isinstance(data, bytes)  # it was hashed just now
    for match in MARKER.finditer(data):
        kind, *name = match.groups()[1:]
        number = data.count(b"\n", 0, match.start()) + 1
        if kind == b"begin":
            begun = (tuple(name), number)
        elif begun and begun[0] == tuple(name):
            regions.append(Region(name[0].decode(), path, name[2].decode(), begun[1], number - begun[1] - 1))
            begun = None
    return regions
