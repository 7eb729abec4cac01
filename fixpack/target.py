"""Where a distribution's files are: an interpreter's site-packages, a folder, a source tree, an image root.

Nothing is imported to find out.  A target is a folder per distribution; every file that is read or
written below it is resolved first and must stay inside.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterable
from typing import NamedTuple

from fixpack.errors import MismatchError, Problem, UsageError

#: (distribution, import package), what a locator needs to know of a release
Names = Iterable[tuple[str, str]]


class Located(NamedTuple):
    """One distribution's place."""

    distribution: str
    root: str  # the folder that holds the package's folder
    how: str  # how it was found, for people
    dist_info: str  # the .dist-info folder beside the package, "" if there is none
    version: str  # what its metadata says, "" if unknown; only to explain
    commit: str  # the commit it says it was built from, "" if unknown


class Target(NamedTuple):
    """All distributions of a profile that were found."""

    located: dict[str, Located]
    boundary: str  # no file may resolve to outside of this folder; "" means outside of its own root


def _locate(distribution: str, package: str, root: str, how: str) -> Located:
    dist_info = _find_dist_info(root, distribution)
    version, commit = _read_metadata(dist_info) if dist_info else ("", "")
    return Located(distribution, root, how, dist_info, version, commit or _version_commit(root, package))


def site_target(folder: str, names: Names) -> Target:
    """One folder that holds the packages and their dist-info, laid out like site-packages.

    :raises UsageError: if the folder does not exist.
    """
    root = _existing(folder, "--site")
    found = {}
    for distribution, package in names:
        if os.path.isdir(os.path.join(root, package)):
            found[distribution] = _locate(distribution, package, root, f"--site {folder}")
    return Target(found, "")


def source_target(folders: dict[str, str], names: Names) -> Target:
    """A source tree (or the folder of an editable install) per distribution.

    :raises UsageError: if a folder or its package does not exist, or a distribution is unknown.
    """
    known = dict(names)
    found = {}
    for distribution, folder in folders.items():
        if distribution not in known:
            message = f"--source names {distribution!r}, which the profile does not pin"
            raise UsageError(Problem("unknown_distribution", message, hint=f"it pins {', '.join(known)}"))
        root = _existing(folder, f"--source {distribution}")
        if not os.path.isdir(os.path.join(root, known[distribution])):
            message = f"{folder} holds no folder {known[distribution]}/"
            raise UsageError(Problem("not_a_source_tree", message, file=root, hint="name the checkout's top folder"))
        found[distribution] = _locate(distribution, known[distribution], root, f"--source {distribution}={folder}")
    return Target(found, "")


def interpreter_target(names: Names) -> Target:
    """What the running interpreter would import, found through its import path without importing.

    The first entry of ``sys.path`` is the folder of the script (or the working folder); a server
    started from elsewhere would not see it, so it does not count.

    :raises MismatchError: if two copies of one package are importable.
    """
    from importlib.machinery import PathFinder

    path = list(sys.path) if sys.flags.isolated or getattr(sys.flags, "safe_path", False) else sys.path[1:]
    found: dict[str, Located] = {}
    problems: list[Problem] = []
    for distribution, package in names:
        copies = _copies(path, package)
        first = PathFinder.find_spec(package, path)
        if first and first.origin and first.submodule_search_locations is None:
            message = f"Python would import {package} from a module of that name, not from a package"
            problems.append(Problem("shadowed", message, file=first.origin, hint="remove it from the import path"))
            continue
        if len(copies) > 1:
            problems.append(
                Problem(
                    "two_copies",
                    f"{package} can be imported from {len(copies)} places",
                    file=copies[0],
                    found=", ".join(copies),
                    hint="remove all but one, or name the one to fix with --site or --source",
                )
            )
            continue
        if copies:
            found[distribution] = _locate(distribution, package, copies[0], f"import path of {sys.executable}")
            continue
        for finder in sys.meta_path:  # editable installs bring a finder of their own
            if finder is PathFinder or getattr(finder, "__module__", "").startswith("_frozen_importlib"):
                continue
            find_spec = getattr(finder, "find_spec", None)  # a finder of the kind before Python 3.4 has none
            spec = find_spec(package, None) if find_spec else None
            places = list(spec.submodule_search_locations or ()) if spec else []
            if places:
                root = os.path.dirname(os.path.realpath(places[0]))
                found[distribution] = _locate(distribution, package, root, f"editable install of {sys.executable}")
                break
    if problems:
        raise MismatchError(*problems)
    return Target(found, "")


def _copies(path: list[str], package: str) -> list[str]:
    copies: list[str] = []
    seen: set[str] = set()
    for entry in path:
        folder = os.path.join(entry, package)
        if os.path.isfile(os.path.join(folder, "__init__.py")):  # a folder without one is passed over by Python
            real = os.path.realpath(folder)
            if real not in seen:
                seen.add(real)
                copies.append(entry)
    return copies


def root_target(folder: str, names: Names) -> Target:
    """An image's unpacked root: the packages in any site-packages or dist-packages below it.

    :raises UsageError: if the folder does not exist.
    :raises MismatchError: if a package is there more than once.
    """
    root = _existing(folder, "--root")
    wanted = list(names)
    places: dict[str, list[str]] = {distribution: [] for distribution, _ in wanted}
    skipped = {os.path.join(root, name) for name in ("proc", "sys", "dev")}
    for here, folders, files in os.walk(root):
        if os.path.basename(here) in ("site-packages", "dist-packages"):
            for distribution, package in wanted:
                if package in folders:
                    places[distribution].append(here)
                places[distribution] += _editable(root, here, package, files)
            folders[:] = []
        else:
            folders[:] = [name for name in folders if os.path.join(here, name) not in skipped]
    found = {}
    problems = []
    for distribution, package in wanted:
        copies = sorted(set(places[distribution]))
        if len(copies) > 1:
            hint = "name the one to fix with --site (inside the root) or --source"
            message = f"{package} is in the root {len(copies)} times"
            problems.append(Problem("two_copies", message, file=root, found=", ".join(copies), hint=hint))
        elif copies:
            found[distribution] = _locate(distribution, package, copies[0], f"--root {folder}")
    if problems:
        raise MismatchError(*problems)
    return Target(found, root)


def _editable(root: str, site: str, package: str, files: list[str]) -> list[str]:
    """Folders inside the root that .pth lines of a site-packages add and that hold the package."""
    found = []
    for name in files:
        if not name.endswith(".pth"):
            continue
        for line in _text(os.path.join(site, name)).split("\n"):
            line = line.strip()
            if not line or line.startswith(("#", "import ", "import\t")):
                continue
            inside = os.path.normpath(os.path.join(root, line.lstrip("/")) if line[0] == "/" else f"{site}/{line}")
            if inside.startswith(root.rstrip(os.sep) + os.sep) and os.path.isdir(os.path.join(inside, package)):
                found.append(inside)
    return found


def _existing(folder: str, option: str) -> str:
    if not os.path.isdir(folder):
        raise UsageError(Problem("no_such_folder", f"{option}: there is no folder {folder}", file=folder))
    if not os.access(folder, os.R_OK | os.X_OK):
        hint = "run as a user who may read it"
        raise MismatchError(Problem("unreadable", f"{option}: the folder cannot be read", file=folder, hint=hint))
    return os.path.realpath(folder)


# -- metadata, only to explain ----------------------------------------------------------------------------------------


def _find_dist_info(root: str, distribution: str) -> str:
    wanted = re.sub(r"[-_.]+", "_", distribution).lower()
    try:
        names = sorted(os.listdir(root))
    except OSError as error:
        raise MismatchError(Problem("unreadable", f"cannot be listed: {error.strerror}", file=root)) from error
    found = []
    for name in names:
        if name.endswith(".dist-info"):
            project = name[: -len(".dist-info")].rpartition("-")[0]
            if re.sub(r"[-_.]+", "_", project).lower() == wanted:
                found.append(name)
    if len(found) > 1:
        message = f"{distribution} has {len(found)} dist-info folders, so nobody can say which is installed"
        hint = "remove what a broken upgrade left, or reinstall the package"
        raise MismatchError(Problem("two_dist_infos", message, file=root, found=", ".join(found), hint=hint))
    return os.path.join(root, found[0]) if found else ""


def _read_metadata(dist_info: str) -> tuple[str, str]:
    version = ""
    for line in _text(os.path.join(dist_info, "METADATA")).split("\n"):
        if line.startswith("Version:"):
            version = line[8:].strip()
        if not line.strip():
            break
    found = re.search(r'"commit_id":\s*"([0-9a-f]{40})"', _text(os.path.join(dist_info, "direct_url.json")))
    commit = found.group(1) if found else ""
    local = re.search(r"\+(?:.*\.)?g([0-9a-f]{7,40})\b", version)
    return version, commit or (local.group(1) if local else "")


def _version_commit(root: str, package: str) -> str:
    """The commit that setuptools-scm wrote into ``_version.py``, "" if it did not."""
    found = re.search(r"commit_id = '?g?([0-9a-f]{7,40})\b", _text(os.path.join(root, package, "_version.py")))
    return found.group(1) if found else ""


def _text(path: str) -> str:
    """A small file's text, "" where there is none that can be read: it only explains, so nothing depends on it."""
    data = read_file(path)
    return data.decode("utf-8", "replace") if isinstance(data, bytes) else ""


# -- files ------------------------------------------------------------------------------------------------------------


def resolve(target: Target, distribution: str, path: str) -> str | Problem:
    """The real path of a file of a distribution, or the problem with it.

    A symbolic link may lead to another place inside the target, never out of it.  The file itself
    may be absent.
    """
    located = target.located[distribution]
    full = os.path.join(located.root, path)
    real = os.path.realpath(full)
    boundary = os.path.realpath(target.boundary or located.root)
    if not real.startswith(boundary.rstrip(os.sep) + os.sep):
        message = "the path leads out of the target through a symbolic link"
        return Problem("leaves_target", message, file=full, found=real, hint="fix the place it leads to instead")
    return real


def read_file(real: str) -> bytes | Problem | None:
    """The bytes of an ordinary file, None if there is none, or the problem with what is there."""
    try:
        descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        return Problem("unreadable", f"cannot be read: {error.strerror}", file=real)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)  # a folder cannot even be wrapped as a file
        return Problem("not_a_file", "is not an ordinary file", file=real)
    with os.fdopen(descriptor, "rb") as file:
        try:
            return file.read()
        except OSError as error:
            return Problem("unreadable", f"cannot be read: {error.strerror}", file=real)
