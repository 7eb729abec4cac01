"""The generated lock of a profile: the hash of every registry byte it uses, and of every base and result.

The lock is JSON so that a confirm run needs no YAML: it says which bytes each file must have, for
every choice of opt-in fixes, and which registry files that was computed from.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fixpack.errors import Problem, RegistryError, UsageError
from fixpack.form import misfit
from fixpack.target import read_file
from fixpack.text import did_you_mean, short

if TYPE_CHECKING:  # a confirm run reads locks and needs no model
    pass

SCHEMA = "fixpack.lock/1"

#: how a lock file ends
_DIGEST = re.compile(rb',\n "digest": "([0-9a-f]{64})"\n}\n\Z')
SUFFIX = ".lock.json"

#: results are listed for every subset of the opt-in fixes that touch a file
MAX_OPT_IN_PER_FILE = 6

Lock = dict[str, Any]

#: The form of a lock: types, lists of a form, mappings of known keys to forms; "*" stands for any key.
_FORM: dict[str, Any] = {
    "schema": str,
    "profile": str,
    "aliases": [str],
    "hardware": str,
    "fixes": {"*": {"revision": int, "title": str, "opt_in": bool, "requires": [str]}},
    "releases": {
        "*": {
            "release": str,
            "version": str,
            "package": str,
            "commit": str,
            "also_commits": [str],
            "files": {"*": {"base": str | None, "fixes": [str], "results": {"*": str | None}, "scopes": {"*": str}}},
        }
    },
    "registry": {"*": str},
    "index": {"*": {"edits": [[str]], "anchors": {"*": [[str]]}, "pins": {"*": str}}},
}


def sha256(data: bytes) -> str:
    """The hash as 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def key_of(opt_in: Iterable[str]) -> str:
    """How a lock names a set of opt-in fixes."""
    return "+".join(sorted(opt_in))


# -- reading ----------------------------------------------------------------------------------------------------------


def find(root: str, name: str) -> Lock:
    """The lock of a profile, by the profile's name or alias, without reading YAML.

    :raises UsageError: if no lock has that name.
    :raises RegistryError: if a lock cannot be read.
    """
    known: list[str] = []
    names_there = _listed(root)
    files = [each for each in names_there if each.endswith(SUFFIX)]
    files.sort(key=lambda each: (each != name + SUFFIX, name not in each))  # the likely ones first: each is read whole
    for each in files:
        lock = read(root, each[: -len(SUFFIX)])
        names = (lock["profile"], *lock["aliases"])
        if name in names:
            return lock
        known += names
    if name + ".yaml" in names_there:
        raise RegistryError(_missing(name))
    hint = did_you_mean(name, known) or f"known: {', '.join(sorted(known)) or 'none'}"
    unlocked = [each[:-5] for each in names_there if each.endswith(".yaml") and each[:-5] + SUFFIX not in files]
    if unlocked:
        hint += f"; without a lock: {', '.join(unlocked)} (run `fixpack lock`)"
    raise UsageError(Problem("unknown_profile", f"there is no profile {name!r}", hint=hint))


def known(root: str) -> list[str]:
    """The profiles that have a lock.

    :raises UsageError: if the registry has no folder of profiles.
    """
    return [each[: -len(SUFFIX)] for each in _listed(root) if each.endswith(SUFFIX)]


def _listed(root: str) -> list[str]:
    folder = os.path.join(root, "profiles")
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        hint = "copy the whole registry (fixes, anchors, patches, profiles) before this step"
        message = f"the registry has no folder profiles/: {error.strerror}"
        raise UsageError(Problem("registry_missing", message, file=folder, hint=hint)) from error


def read(root: str, profile: str) -> Lock:
    """A profile's lock.

    :raises RegistryError: if it is missing or not a lock.
    """
    path = f"profiles/{profile}{SUFFIX}"
    raw = read_file(os.path.join(root, path))
    if raw is None:
        raise RegistryError(_missing(profile))
    if isinstance(raw, Problem):
        raise RegistryError(_broken(path, f"it {raw.message}"))
    digest = _DIGEST.search(raw)
    if not digest or sha256(raw[: digest.start()] + b"\n}") != digest.group(1).decode():
        raise RegistryError(_broken(path, "it was edited or merged by hand (its digest is not that of its text)"))
    try:
        lock = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RegistryError(_broken(path, str(error))) from error
    if isinstance(lock, dict):
        del lock["digest"]
    if not isinstance(lock, dict) or lock.get("schema") != SCHEMA or lock.get("profile") != profile:
        raise RegistryError(_broken(path, f"it is not a {SCHEMA} of {profile}"))
    wrong = misfit(lock, _FORM, what="the lock") or _inconsistency(lock)
    if wrong:
        raise RegistryError(_broken(path, wrong))
    return lock


def _inconsistency(lock: Lock) -> str:
    """What one part of a lock of the right form says and another does not; "" if they agree."""
    fixes = lock["fixes"]
    for needed in (f"profiles/{lock['profile']}.yaml", *(f"fixes/{name}.yaml" for name in fixes)):
        if needed not in lock["registry"]:
            return f"it lacks the sha256 of {needed}"
    for distribution, release in lock["releases"].items():
        index = lock["index"].get(distribution)
        if index is None:
            return f"it has no index of {distribution}"
        for path, entry in release["files"].items():
            unknown = [name for name in entry["fixes"] if name not in fixes]
            if unknown:
                return f"{path} names the fix {unknown[0]!r}, which it lacks"
            opt_in = [name for name in entry["fixes"] if fixes[name]["opt_in"]]
            if len(entry["results"]) != 2 ** len(opt_in) or any(
                set(key.split("+")) - {"", *opt_in} for key in entry["results"]
            ):
                return f"the results of {path} are not one for each choice of opt-in fixes"
            if entry["base"] != index["pins"].get(path):
                return f"the base of {path} is not its pin"
            if len(opt_in) < len(entry["fixes"]) and entry["base"] in entry["results"].values():
                return f"a result of {path} is its base"
    entries = [entry for release in lock["releases"].values() for entry in release["files"].values()]
    touched = {name for entry in entries for name in entry["fixes"]}
    for name in fixes:
        if name not in touched:
            return f"{name} touches no file"
    return ""


def _missing(profile: str) -> Problem:
    path = f"profiles/{profile}{SUFFIX}"
    return Problem("lock_missing", f"the profile {profile} has no lock", file=path, hint="run `fixpack lock`")


def _broken(path: str, why: str) -> Problem:
    return Problem("lock_invalid", f"the lock cannot be used: {why}", file=path, hint="run `fixpack lock`")


def ignored(name: str) -> bool:
    """Whether a name in a registry folder is none of the registry's business: bytecode, a desktop's notes."""
    return name == "__pycache__" or name.startswith(".")


def stale(root: str, lock: Lock) -> list[Problem]:
    """Every registry file that is not what the lock was made from, payloads that it does not know included."""
    path = f"profiles/{lock['profile']}{SUFFIX}"
    hint = f"if the change is wanted, run `fixpack lock` and review {path}"
    problems = []
    known: dict[str, str] = lock["registry"]
    for file, digest in known.items():
        data = read_file(os.path.join(root, file))
        if not isinstance(data, bytes):
            why = data.message if data else "is not there"
            problems.append(Problem("lock_stale", f"the lock names {file}, which {why}", file=file, hint=hint))
            continue
        found = sha256(data)
        if found != digest:
            message = "this is not what the lock was made from"
            problems.append(Problem("lock_stale", message, "", file, 0, short(digest), short(found), hint=hint))
    for folder in sorted({os.path.dirname(file) for file in known if file.startswith("patches/")}):
        try:
            names = sorted(os.listdir(os.path.join(root, folder)))
        except FileNotFoundError:
            continue  # its files are reported already
        except OSError as error:
            problems.append(Problem("lock_stale", f"{folder} cannot be listed: {error.strerror}", file=folder))
            continue
        for name in names:
            if f"{folder}/{name}" not in known and not ignored(name):
                more = (
                    f"remove it; or, if it is wanted, name it in an edit and run `fixpack lock` (it is not in {path})"
                )
                problems.append(
                    Problem("lock_stale", "no payload of the locked fixes", file=f"{folder}/{name}", hint=more)
                )
    return problems


def dump(lock: Lock) -> bytes:
    """The bytes of a lock file: the lock, and last the digest of all that stands before it."""
    body = json.dumps(lock, indent=1, ensure_ascii=False).encode()
    return body[: -len("\n}")] + b',\n "digest": "%s"\n}\n' % sha256(body).encode()
