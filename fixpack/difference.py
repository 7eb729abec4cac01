"""What fixes change in a target, as unified diffs: as it has them, or as it would get them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import NamedTuple

from fixpack.compose import compose, target_path
from fixpack.crosscheck import closure
from fixpack.errors import MismatchError, Problem
from fixpack.layers import only
from fixpack.lock import Lock
from fixpack.look import Seen, look_at
from fixpack.model import Fix, Registry, Release
from fixpack.target import Target


class FileDiff(NamedTuple):
    """One file's difference."""

    path: str
    in_place: bool  # whether the target has it; else it would get it
    text: str


def differences(
    registry: Registry, lock: Lock, names: Sequence[str], target: Target, *, alone: bool = False
) -> list[FileDiff]:
    """One diff per file that the fixes touch, from the file without them to the file with them.

    :param names: the fixes; empty for all that are in place, or, if none is, the profile's default fixes.
    :param alone: against upstream's file, instead of against the file with the other fixes that are in place.
    :raises MismatchError: if a file is not the pinned one below the fixes.
    """
    profile = registry.profiles[lock["profile"]]
    seen: dict[tuple[str, str], Seen] = {}
    problems: list[Problem] = []
    for release in registry.profile_releases(profile):
        for path, entry in lock["releases"][release.distribution]["files"].items():
            if release.distribution in target.located and (not names or set(entry["fixes"]) & set(names)):
                one = look_at(registry, release, lock, path, target)
                seen[release.distribution, path] = one
                problems += _unusable(one, path, release)
    if problems:
        raise MismatchError(*problems)
    here = {name for one in seen.values() for name in one.applied}
    chosen = tuple(names) or tuple(name for name in lock["fixes"] if name in here) or profile.fixes
    whole = (*chosen, *(name for name in lock["fixes"] if name in here))
    around = chosen if alone else closure(registry, whole, profile.releases)
    diffs = []
    for release in registry.profile_releases(profile):
        for path in lock["releases"][release.distribution]["files"]:
            found = seen.get((release.distribution, path))
            if found is None or not any(_edits(registry.fixes[name], release, path) for name in chosen):
                continue
            proven = path not in release.files or found.base is not None
            base = found.base if proven else found.stripped.base
            old = _with(registry, release, path, base, [name for name in around if name not in chosen])
            new = _with(registry, release, path, base, around)
            text = unified(path, old, new)
            if text:
                diffs.append(FileDiff(path, found.data == new, text))
    return diffs


def _unusable(one: Seen, path: str, release: Release) -> list[Problem]:
    """Problems that leave no base to compute from; another layer's changes elsewhere do not."""
    if path in release.files and one.data is not None and not one.stripped.problems and one.applied:
        return [problem for problem in one.problems if problem.code == "edited_in_scope"]
    return list(one.problems)


def _edits(fix: Fix, release: Release, path: str) -> bool:
    return any(target_path(release, edit) == path for edit in fix.edits_for(release))


def _with(registry: Registry, release: Release, path: str, base: bytes | None, names: Sequence[str]) -> bytes | None:
    fixes = [only(registry.fixes[name], release, path) for name in names]
    return compose({path: base}, release, fixes).get(path, base)


def unified(path: str, old: bytes | None, new: bytes | None) -> str:
    """A unified diff that ``patch -p1`` takes; "" if both are the same."""
    before = "" if old is None else old.decode("utf-8", "surrogateescape")
    after = "" if new is None else new.decode("utf-8", "surrogateescape")
    lines = difflib.unified_diff(
        _lines(before),
        _lines(after),
        "/dev/null" if old is None else f"a/{path}",
        "/dev/null" if new is None else f"b/{path}",
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    """Lines as diff and patch see them: only a line feed ends one."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
