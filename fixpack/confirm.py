"""The confirm run: prove from the lock alone that every selected fix is in, byte for byte.

This is what a server's start line pays each time, so it reads no YAML and imports nothing that it
does not need.  It answers only "yes, all of it"; every other answer is the engine's to explain.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from fixpack.bytecode import unchecked
from fixpack.errors import Problem, UsageError
from fixpack.journal import pending
from fixpack.lock import Lock, key_of, sha256
from fixpack.outcome import FileState, FixState, Outcome, Place
from fixpack.record import row
from fixpack.target import Located, Target, read_file, resolve
from fixpack.text import did_you_mean


class Selection(NamedTuple):
    """What the command asks for, by the lock."""

    default: tuple[str, ...]
    opt_in: tuple[str, ...]  # the named opt-in fixes
    named: tuple[str, ...] = ()  # default fixes that were named although they go in anyway


def select(lock: Lock, names: Sequence[str]) -> Selection:
    """The profile's default fixes and the opt-in fixes that ``names`` adds.

    :raises UsageError: for unknown names and missing requirements, all at once.
    """
    fixes: dict[str, Any] = lock["fixes"]
    default = tuple(name for name, fix in fixes.items() if not fix["opt_in"])
    opt_in = tuple(name for name, fix in fixes.items() if fix["opt_in"] and name in names)
    problems = []
    for name in dict.fromkeys(names):
        if name not in fixes:
            hint = did_you_mean(name, fixes) or f"its fixes: {', '.join(fixes)}"
            message = f"the profile {lock['profile']} has no fix {name!r}"
            problems.append(Problem("unknown_fix", message, name, hint=hint))
    for name in opt_in:
        for other in fixes[name]["requires"]:
            if other not in default and other not in opt_in:
                message = f"{name} requires {other}, which is opt-in and was not named"
                problems.append(Problem("missing_requirement", message, name, hint=f"name {other} as well"))
    if not default and not opt_in:
        problems.append(Problem("nothing_selected", f"the profile {lock['profile']} selects no fix"))
    if problems:
        raise UsageError(*problems)
    return Selection(default, opt_in, tuple(name for name in default if name in names))


def expected(lock: Lock, chosen: Sequence[str]) -> dict[tuple[str, str], dict[str, Any]]:
    """Every file that the selected fixes touch: (distribution, path) -> its entry and wanted sha256."""
    files = {}
    for distribution, release in lock["releases"].items():
        for path, entry in release["files"].items():
            if any(fix in chosen for fix in entry["fixes"]):
                key = key_of(fix for fix in entry["fixes"] if lock["fixes"][fix]["opt_in"] and fix in chosen)
                files[distribution, path] = {**entry, "sha256": entry["results"][key]}
    return files


def confirm(lock: Lock, selection: Selection, target: Target, update_record: bool = False) -> Outcome | None:
    """The outcome "confirmed" if every byte is as the lock says, else None.

    :param update_record: whether RECORD's rows of changed files are to be right too.
    """
    chosen = (*selection.default, *selection.opt_in)
    if any(pending(located.root) for located in target.located.values()):
        return None  # an interrupted run is to be finished first
    files = []
    for (distribution, path), entry in expected(lock, chosen).items():
        located = target.located.get(distribution)
        real = resolve(target, distribution, path) if located else None
        if located is None or not isinstance(real, str):
            return None
        data = read_file(real)
        if not isinstance(data, bytes) or sha256(data) != entry["sha256"] or unchecked(real, data):
            return None
        if (entry["base"] is None or update_record) and not recorded(located, path, data):
            return None
        files.append(FileState(distribution, path, real, entry["base"] or "", entry["sha256"], False))
    if not _others_absent(lock, chosen, target):
        return None
    return Outcome(
        "confirmed",
        lock["profile"],
        fix_states(lock, chosen, dict.fromkeys(chosen, "applied"), ()),
        tuple(files),
        places(lock, target),
        notes=remarks(lock, selection, target),
    )


def _others_absent(lock: Lock, chosen: Sequence[str], target: Target) -> bool:
    """Whether files that only fixes outside of the selection touch are as upstream has them."""
    for distribution, release in lock["releases"].items():
        located = target.located.get(distribution)
        for path, entry in release["files"].items() if located else ():
            if any(fix in chosen for fix in entry["fixes"]):
                continue
            real = resolve(target, distribution, path)
            data = read_file(real) if isinstance(real, str) else real
            found = sha256(data) if isinstance(data, bytes) else None
            if isinstance(data, Problem) or found != entry["base"]:
                return False
    return True


def remarks(lock: Lock, selection: Selection, target: Target) -> tuple[str, ...]:
    """What the bytes of the fixed files do not tell: packages beside those that the proofs ran with."""
    notes = []
    for distribution, release in lock["releases"].items():
        located = target.located.get(distribution)
        known = (release["commit"], *release["also_commits"])
        pinned = f"{release['version']}, commit {release['commit'][:12]}"
        if located is None:
            notes.append(f"{distribution} was not found; the proofs ran with {pinned}")
            continue
        told = located.commit  # either may be abbreviated
        same = told and any(commit.startswith(told) or told.startswith(commit) for commit in known)
        version = located.version.partition("+")[0]
        if not same and (located.commit or version not in ("", release["version"])):
            told = located.version or f"commit {located.commit[:12]}"
            notes.append(f"{distribution} says that it is {told}; the proofs ran with {pinned}")
    for name in selection.named:
        notes.append(f"{name} is one of the profile's own fixes: all {len(selection.default)} go in")
    return tuple(notes)


def recorded(located: Located, path: str, data: bytes) -> bool:
    """Whether RECORD, where there is one, has the row of an added file."""
    if not located.dist_info:
        return True
    record = read_file(os.path.join(located.dist_info, "RECORD"))
    return record is None or (isinstance(record, bytes) and row(path, data) in record)


def fix_states(
    lock: Lock, chosen: Sequence[str], states: dict[str, str], unasked: Sequence[str]
) -> tuple[FixState, ...]:
    """The report lines of fixes, in the profile's order."""
    rows = []
    for name, fix in lock["fixes"].items():
        if name in chosen or name in unasked:
            touched = [
                path
                for release in lock["releases"].values()
                for path, entry in release["files"].items()
                if name in entry["fixes"]
            ]
            rows.append(
                FixState(
                    name,
                    fix["revision"],
                    fix["title"],
                    states.get(name, "pristine"),
                    fix["opt_in"],
                    name not in unasked,
                    tuple(touched),
                )
            )
    return tuple(rows)


def places(lock: Lock, target: Target) -> tuple[Place, ...]:
    """Where each distribution was found; the commit is said when the install or its bytes tell it."""
    found = []
    for distribution, release in lock["releases"].items():
        located = target.located.get(distribution)
        if located:
            known = [release["commit"], *release["also_commits"]]
            told = located.commit
            commit = next((full for full in known if told and full.startswith(told)), told)
            found.append(Place(distribution, release["release"], located.root, located.how, located.version, commit))
    return tuple(found)
