"""The committed results of proofs (docs/proofs.json): what was proven when, on what, and whether it still speaks.

``fixpack prove --record`` writes it, pages show it.  A result belongs to the exact fix, test and releases that its
digest names; when one of them changes, the result is shown as outdated until it is recorded again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from fixpack.durable import replace
from fixpack.errors import Problem, RegistryError, UsageError
from fixpack.form import misfit
from fixpack.model import Fix, Profile, Registry, Release
from fixpack.target import read_file

PATH = "docs/proofs.json"
SCHEMA_VERSION = 1

_PAIRS = ("red", "guards", "alone", "together")
_RESULT: dict[str, Any] = {
    "revision": int,
    "digest": str,
    "date": str,
    "status": str,
    **{key: [int] for key in _PAIRS},
    "seconds": float,
    "versions": {"*": str},
}
_FORM = {"schema_version": int, "profiles": {"*": {"releases": {"*": str}, "fixes": {"*": _RESULT}}}}


class Result(NamedTuple):
    """What one proof gave in one profile."""

    revision: int
    digest: str  # of what was proven, see `digest`
    date: str  # of the run, UTC, "2026-11-29"
    status: str  # "proven", "superseded" or "failed"
    red: tuple[int, int]  # declared tests that failed on stock as declared, declared tests
    guards: tuple[int, int]  # other tests that passed on stock, other tests
    alone: tuple[int, int]  # passed, ran: with the fix and what it requires
    together: tuple[int, int]  # passed, ran: over all runs with everything applied
    seconds: float  # of the fix's tests in all runs
    versions: dict[str, str]  # "python", "fixpack" and packages that proofs depend on


class Recorded(NamedTuple):
    """The results of one profile."""

    releases: dict[str, str]  # distribution@release -> commit
    fixes: dict[str, Result]


Proofs = Mapping[str, Recorded]  # by profile


def read(root: str, path: str = "") -> dict[str, Recorded]:
    """The results of a registry; empty if none were recorded.

    :param path: the file, by default ``docs/proofs.json`` of the registry.
    :raises RegistryError: if the file is not such a record.
    """
    name = path or PATH
    real = os.path.realpath(path or os.path.join(root, PATH))
    text = read_file(real)
    if text is None:
        return {}
    if isinstance(text, Problem):
        raise RegistryError(_broken(name, f"it {text.message}"))
    try:
        data = json.loads(text.decode("utf-8"))
    except ValueError as error:
        raise RegistryError(_broken(name, str(error))) from error
    except RecursionError:
        raise RegistryError(_broken(name, "it nests too deeply")) from None
    wrong = misfit(data, _FORM, what="the record")
    if not wrong and data["schema_version"] != SCHEMA_VERSION:
        wrong = f"its schema_version is {data['schema_version']}, not {SCHEMA_VERSION}"
    results = [] if wrong else [one for each in data["profiles"].values() for one in each["fixes"].values()]
    if any(len(one[key]) != 2 for one in results for key in _PAIRS):
        wrong = f"{', '.join(_PAIRS)} must be two counts each"
    if any(not re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", one["date"]) for one in results):
        wrong = "a date is not of the form 2026-11-29"
    if wrong:
        raise RegistryError(_broken(name, wrong))
    return {
        profile: Recorded(each["releases"], {fix: _result(result) for fix, result in each["fixes"].items()})
        for profile, each in data["profiles"].items()
    }


def _result(data: dict[str, Any]) -> Result:
    pairs = {key: tuple(data[key]) for key in _PAIRS}
    return Result(**{**data, **pairs})


def _broken(name: str, why: str) -> Problem:
    hint = "take the committed version back, or remove the file and record again: fixpack prove --record FILE"
    return Problem("record_invalid", f"not a record of proofs: {why}", file=name, hint=hint)


def digest(registry: Registry, profile: Profile, fix: Fix) -> str:
    """The sha256 of everything that a proof of the fix depends on in this project.

    Edits with payloads and anchors, the pins of the edited files, the declared failures, and the test file; the same
    of each fix that it requires, without their tests.

    :raises RegistryError: if the test file cannot be read.
    """
    try:
        with open(os.path.join(registry.root, fix.proof.test), "rb") as file:
            test = hashlib.sha256(file.read()).hexdigest()
    except OSError as error:
        message = f"cannot read the proof of {fix.id}: {error.strerror}"
        raise RegistryError(Problem("proof_missing", message, fix.id, fix.proof.test)) from error
    releases = registry.profile_releases(profile)
    needed: dict[str, Any] = {}
    waiting = [fix.id]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed[name] = [_edits(registry.fixes[name], release) for release in releases]
            waiting += registry.fixes[name].required(profile.releases)
    whole = {
        "test": test,
        "stock": fix.proof.stock,
        "green": sorted(fix.green_on(releases)),
        "edits": needed,
        "commits": [each.commit for each in releases],
    }
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def _edits(fix: Fix, release: Release) -> list[list[str]]:
    found = []
    for edit in fix.edits_for(release):
        place = release.find(edit.anchor) if edit.anchor else None
        where = [place[0].path, place[0].sha256, place[1].within, place[1].text] if place else [edit.path]
        found.append([edit.op, edit.payload, *where])
    return found


def check(registry: Registry, path: str) -> None:
    """Find out before hours of proofs whether their results can be put into a file.

    :raises RegistryError: if it is there and is not such a record.
    :raises UsageError: if it cannot be written.
    """
    read(registry.root, path)
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UsageError(_unwritable(path, "its folder is not there, or may not be written"))


def _unwritable(path: str, why: str) -> Problem:
    message = f"--record: the results cannot be written: {why}"
    return Problem("bad_usage", message, file=path, hint="name a file in a folder that there is")


def write(registry: Registry, path: str, new: Mapping[str, Recorded]) -> None:
    """Put new results into a record; those of other fixes and profiles stay, those of gone ones go.

    :raises RegistryError: if the file is there and is not such a record.
    :raises UsageError: if it cannot be written.
    """
    merged: dict[str, Recorded] = {}
    for name, old in {**dict.fromkeys(registry.profiles, Recorded({}, {})), **read(registry.root, path)}.items():
        profile = registry.profiles.get(name)
        if profile is None:
            continue
        releases = {each.ref: each.commit for each in registry.profile_releases(profile)}
        results = {**old.fixes, **new[name].fixes} if name in new else old.fixes
        names = (*profile.fixes, *profile.opt_in, *registry.superseded(profile))
        kept = {fix: results[fix] for fix in names if fix in results}
        if kept:
            merged[name] = Recorded(releases, kept)
    profiles = [
        f'  {json.dumps(name)}: {{\n   "releases": {json.dumps(each.releases)},\n   "fixes": {{\n'
        + ",\n".join(f"    {json.dumps(fix)}: {json.dumps(one._asdict())}" for fix, one in each.fixes.items())
        + "\n   }\n  }"
        for name, each in sorted(merged.items())
    ]  # one line for each fix, so that a diff shows which were recorded
    text = f'{{\n "schema_version": {SCHEMA_VERSION},\n "profiles": {{\n' + ",\n".join(profiles) + "\n }\n}\n"
    try:
        replace(path, text.encode())
    except OSError as error:
        raise UsageError(_unwritable(path, error.strerror or str(error))) from error
