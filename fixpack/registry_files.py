"""The files of a registry: their names, their bytes, and the patterns of what stands in them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from fixpack.errors import Problem
from fixpack.lock import ignored
from fixpack.strictyaml import MAX_BYTES, Reader, Value, parse

NAME = r"[a-z0-9]+(-[a-z0-9]+)*"
RELEASE = r"[a-z0-9]+([.-][a-z0-9]+)*"
SHA256 = r"[0-9a-f]{64}"
COMMIT = r"[0-9a-f]{40}"
#: a release whose archive is pinned by sha256 may name its commit as the archive does: abbreviated
COMMIT_SHORT = r"[0-9a-f]{9,40}"
URL = r"https://[!-~]+"
SCOPE = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*"
PATH = r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+"
CODE = r"[a-z0-9_]+\.py"
PROOF_TEST = r"tests/fixes/test_[a-z0-9_]+\.py"


def folder_names(root: str, folder: str, problems: list[Problem], folders: bool = False) -> list[str]:
    """The entries of a registry folder that are files (or folders), sorted; anything else is a problem."""
    names: list[str] = []
    lowered: dict[str, str] = {}
    try:
        with os.scandir(os.path.join(root, folder)) as scanned:
            entries = sorted((each for each in scanned if not ignored(each.name)), key=lambda entry: entry.name)
    except OSError as error:
        problems.append(Problem("registry_invalid", f"cannot be listed: {error.strerror}", file=folder))
        return []
    for entry in entries:
        right = entry.is_dir(follow_symlinks=False) if folders else entry.is_file(follow_symlinks=False)
        if not right:
            want = "a folder" if folders else "an ordinary file"
            problems.append(
                Problem("registry_invalid", f"{folder}/{entry.name} is not {want}", file=f"{folder}/{entry.name}")
            )
            continue
        twin = lowered.setdefault(entry.name.lower(), entry.name)
        if twin != entry.name:
            problems.append(
                Problem(
                    "registry_invalid",
                    f"{entry.name!r} and {twin!r} differ only in case",
                    file=f"{folder}/{entry.name}",
                )
            )
            continue
        names.append(entry.name)
    return names


def yaml_files(root: str, folder: str, problems: list[Problem], beside: str = "") -> Iterator[str]:
    """Names, without ``.yaml``, of the YAML files of a folder."""
    for name in folder_names(root, folder, problems):
        if name.endswith(".yaml"):
            yield name[: -len(".yaml")]
        elif not (beside and name.endswith(beside)):
            problems.append(
                Problem(
                    "registry_invalid",
                    f"{folder}/ holds {name!r}, which is not a .yaml file",
                    file=f"{folder}/{name}",
                    hint="remove it, or name it *.yaml",
                )
            )


def read_registry_file(root: str, path: str) -> bytes:
    """The bytes of a registry file.

    :raises OSError: if it is not an ordinary file or cannot be read.
    """
    full = os.path.join(root, path)
    status = os.lstat(full)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"{path} is not an ordinary file")
    if status.st_size > MAX_BYTES:
        raise OSError(f"{path} has {status.st_size} bytes; at most {MAX_BYTES} are allowed")
    with open(full, "rb") as file:
        return file.read()


def read_yaml(root: str, path: str, problems: list[Problem]) -> Value | None:
    """What a YAML file holds; None, and what is wrong in `problems`, if that is anything."""
    try:
        data = read_registry_file(root, path)
    except OSError as error:
        problems.append(Problem("registry_invalid", f"cannot read it: {error}", file=path))
        return None
    value, found = parse(data, path)
    problems.extend(found)
    return None if found else value


def open_yaml(root: str, path: str, problems: list[Problem], what: str, fix: str = "") -> Reader | None:
    """A reader of the mapping that a YAML file holds; None as for ``read_yaml``."""
    value = read_yaml(root, path, problems)
    return None if value is None else Reader(value, path, problems, what, fix)


def same_name(reader: Reader, key: str, wanted: str, pattern: str, whose: str) -> str:
    """A field that must repeat what the file's place says."""
    found = reader.text(key, pattern=pattern)
    if found and found != wanted:
        reader.bad(f"{key!r} is {found!r}, but {whose} says {wanted!r}", reader.line_of(key))
    return found


def check_lines(reader: Reader, key: str, text: str) -> None:
    """Whole lines of a file, the first one not indented."""
    lines = text.split("\n")
    line = reader.line_of(key)
    if text and (lines[0] != lines[0].lstrip() or not lines[0]):
        reader.bad(f"{key!r} must start with its first line, not indented (the indentation is the file's)", line)
    if text and not lines[-1].strip():
        reader.bad(f"{key!r} must not end with an empty line", line)
    if "\t" in text:
        reader.bad(f"{key!r} holds a tab", line)
