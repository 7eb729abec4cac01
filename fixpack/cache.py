"""The cache of pinned upstream sources: where it is, who may write, what a tree says of its origin.

Layout, outside any checkout::

    lock                       held by whoever writes
    git/<distribution>.git     bare repository
    sdists/<file>              source archives, and `.part` files of interrupted downloads
    trees/<dist>@<release>/    one exported tree per release, never written to after its rename
    tmp/                       work in progress; emptied by the next writer
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import sys
from collections.abc import Iterator
from typing import NamedTuple

from fixpack.errors import Problem, SourceError, UsageError
from fixpack.form import misfit
from fixpack.model import Release
from fixpack.target import read_file

#: A tree's own note about where it comes from; inside the tree, so that one rename publishes both.
RECORD = ".fixpack-source.json"

#: Import names of the extra `tools`.
TOOLS = ("git", "pypi_simple", "platformdirs", "rich", "requests", "jinja2", "markupsafe", "markdown_it", "pygments")


class Record(NamedTuple):
    """What a tree was made of."""

    kind: str  # "git" or "sdist"
    commit: str  # 40 hex digits, "" when it cannot be known
    sdist_sha256: str  # "" for git
    origin: str  # path or address, without credentials
    files: dict[str, str]  # sdist only: path -> sha256, as unpacked


_FORM = {"kind": str, "commit": str, "sdist_sha256": str, "origin": str, "files": {"*": str}}


@contextlib.contextmanager
def tools() -> Iterator[None]:
    """Turn a missing optional package into a line that installs it.

    Raises: UsageError.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in TOOLS:
            raise
        message = f"this command needs the Python package {error.name}, which is not installed"
        raise UsageError(
            Problem(
                "tool_missing", message, hint=f"in a checkout: {sys.executable} -m pip install -r requirements/try.txt"
            )
        ) from error


def cache_dir() -> str:
    """The cache's folder: $FIXPACK_SOURCES, else the user's cache folder.  It need not exist.

    Raises: UsageError where the user has no home.
    """
    if chosen := os.environ.get("FIXPACK_SOURCES"):
        return os.path.abspath(chosen)
    with tools():
        import platformdirs

        try:
            found = platformdirs.user_cache_dir("fixpack")
        except RuntimeError:  # a container's user without an entry in passwd; older platformdirs leave the ~
            found = "~"
    if not os.path.isabs(found):
        message = "there is no place for the source cache: this user has no home folder"
        raise UsageError(Problem("no_cache_folder", message, hint="set FIXPACK_SOURCES to a folder for it"))
    return found


def tree_dir(release: Release) -> str:
    """Where the tree of a release is, or would be."""
    return os.path.join(cache_dir(), "trees", release.ref)


def git_dir(release: Release) -> str:
    """Where the bare repository of a release's distribution is, or would be."""
    return os.path.join(cache_dir(), "git", f"{release.distribution}.git")


def sdist_file(release: Release) -> str:
    """Where the source archive of a release is, or would be; "" if it pins none."""
    return os.path.join(cache_dir(), "sdists", release.sdist.filename) if release.sdist else ""


@contextlib.contextmanager
def exclusive() -> Iterator[str]:
    """Hold the cache for writing; yields an empty folder for work in progress.

    Waits for another writer.  What a killed writer left in `tmp/` is removed: nobody else can be
    using it while we hold the lock.  Raises: SourceError when the cache cannot be written, also when
    the work inside finds that.
    """
    root = cache_dir()
    tmp = os.path.join(root, "tmp")
    if os.path.islink(tmp):  # emptying it would delete what it leads to
        message = "the source cache's folder for work in progress is a symbolic link; it is not followed"
        hint = "remove the link; to have the cache elsewhere, set FIXPACK_SOURCES"
        raise SourceError(Problem("cache_link", message, file=tmp, found=os.readlink(tmp), hint=hint))
    try:
        for folder in ("git", "sdists", "trees", "tmp"):
            os.makedirs(os.path.join(root, folder), exist_ok=True)
        lock = open(os.path.join(root, "lock"), "ab")  # noqa: SIM115 - closed below
    except OSError as error:
        raise SourceError(
            Problem(
                "cache_read_only",
                f"the source cache cannot be written: {error.strerror}",
                file=error.filename or root,
                hint="put it elsewhere: set FIXPACK_SOURCES to a folder that you can write, and run this again",
            )
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another fetch that holds {lock.name}", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            empty(tmp)
            try:
                yield tmp
            finally:
                empty(tmp)
        except OSError as error:
            raise SourceError(failed_write(error, root)) from error


def failed_write(error: OSError, folder: str) -> Problem:
    """The problem of work in a folder that the system does not let go on: it is full, read-only, broken.

    :param folder: where the work was, for an error that names no file.
    """
    reasons = [str(each[2]) for each in error.args[0]] if isinstance(error, shutil.Error) else []
    reason = next(iter(reasons), error.strerror or str(error))
    place = error.filename if isinstance(error.filename, str) else folder
    if error.errno in _FULL or any(os.strerror(number) in reason for number in _FULL):
        hint = f"make room in {folder}, or have it elsewhere: FIXPACK_SOURCES says where the cache is, TMPDIR the rest"
        return Problem("disk_full", "there is no room left to write", file=place, found=reason, hint=hint)
    return Problem("io_error", reason, file=place)


_FULL = (errno.ENOSPC, errno.EDQUOT)


def empty(folder: str) -> None:
    """Remove everything in a folder, but not the folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)


def publish(made: str, place: str, tmp: str) -> None:
    """Put a finished tree or repository in its place with one rename; an older one goes first."""
    if os.path.lexists(place):
        os.rename(place, os.path.join(tmp, f"replaced-{os.path.basename(place)}"))
    os.rename(made, place)


def write_record(tree: str, record: Record) -> None:
    """Write a tree's note about its origin."""
    with open(os.path.join(tree, RECORD), "w", encoding="utf-8") as file:
        json.dump(record._asdict(), file, indent=1, sort_keys=True)
        file.write("\n")


def read_record(tree: str) -> Record | None:
    """A tree's note about its origin; None if there is none or it cannot be understood."""
    data = read_file(os.path.join(tree, RECORD))
    if not isinstance(data, bytes):
        return None
    try:
        found = json.loads(data)
        return None if misfit(found, _FORM) else Record(**found)
    except (ValueError, RecursionError):
        return None
