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
from fixpack.errors import Problem, UsageError
from fixpack.model import Release

_MARKER = re.compile(rb"\s*# fixpack (begin|end) ([a-z0-9-]+) r(\d+): (.*?)\s*")


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

    Out: path -> sha256 of every package file.  Raises: SourceError when one is not in the cache.
    """
    laid = {}
    for release in releases:
        tree = sources.tree(release)
        shutil.copytree(
            os.path.join(tree, release.package),
            os.path.join(site, release.package),
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        files = hashes(site, release.package)
        laid.update(files)
        _write_dist_info(release, tree, site, files)
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
    """The sha256 of every file of a package, by its path in the folder that holds it."""
    found = {}
    for folder, _, names in os.walk(os.path.join(site, package)):
        for name in names:
            full = os.path.join(folder, name)
            with open(full, "rb") as file:
                found[os.path.relpath(full, site)] = hashlib.sha256(file.read()).hexdigest()
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
    begun: tuple[str, str, int] | None = None
    with open(full, "rb") as file:
        for number, line in enumerate(file, 1):
            if not (match := _MARKER.fullmatch(line)):
                continue
            fix, anchor = match[2].decode(), match[4].decode()
            if match[1] == b"begin":
                begun = (fix, anchor, number)
            elif begun and begun[:2] == (fix, anchor):
                regions.append(Region(fix, path, anchor, begun[2], number - begun[2] - 1))
                begun = None
    return regions
