"""The build of a fixed image: which arguments the Dockerfile gets, and which of them it can check."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence

from fixpack import epoch
from fixpack.confirm import Selection
from fixpack.errors import Problem, UsageError
from fixpack.lock import Lock, dump, find, sha256

#: What a build reads of a checkout: what .dockerignore lets through, and the two files that say how.
CONTEXT = (
    ".dockerignore",
    "Dockerfile",
    "anchors",
    "apply_all.py",
    "fixes",
    "fixpack",
    "launch",
    "patches",
    "profiles",
)

#: the arguments that only become labels; `check` says what is true of them
LABELS = ("BASE_NAME", "BASE_DIGEST", "FIX_REVISIONS", "FIXPACK_REVISION", "LOCK_SHA256")

_DIGEST = "sha256:[0-9a-f]{64}"

#: a line of git status that names what git does not have and .dockerignore does not let through
_NOT_COPIED = re.compile(r"(\?\?|!!) .*/(__pycache__/|\.)")
_MAKE = "`fixpack image` prints a command with all arguments"


def arguments(root: str, lock: Lock, selection: Selection, base: str, user: str, python: str) -> dict[str, str]:
    """The build's arguments.

    :param root: a git checkout of the registry and the engine.
    :param base: the image to build on, ``NAME[:TAG]@sha256:…``.
    :param user: its user, as its configuration has it.
    :param python: the interpreter in it that has vLLM.
    :raises UsageError: if the base has no digest, or the checkout is not one commit.
    """
    name, _, digest = base.partition("@")
    if not name or not re.fullmatch(_DIGEST, digest):
        hint = "a tag can be another image tomorrow: `docker buildx imagetools inspect NAME:TAG` prints the digest"
        raise UsageError(Problem("bad_usage", f"--base needs NAME[:TAG]@sha256:…, not {base!r}", hint=hint))
    revision, time = _commit(root)
    if os.environ.get(epoch.NAME):
        time = str(epoch.epoch())
    return {
        "BASE": f"{_untagged(name)}@{digest}",  # not every builder takes a tag and a digest at once
        "BASE_NAME": name,
        "BASE_DIGEST": digest,
        "BASE_USER": user,
        "PROFILE": lock["profile"],
        "FIXES": " ".join(selection.opt_in),
        "FIX_REVISIONS": revisions(lock, (*selection.default, *selection.opt_in)),
        "LOCK_SHA256": sha256(dump(lock)),
        "FIXPACK_REVISION": revision,
        "PYTHON": python,
        epoch.NAME: time,
    }


def _untagged(name: str) -> str:
    """An image's name without its tag; the colon of a registry's port stays."""
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.partition(":")[0]


def revisions(lock: Lock, fixes: Sequence[str]) -> str:
    """Every fix with its revision, in the profile's order, as the label has it."""
    return " ".join(f"{name}@{fix['revision']}" for name, fix in lock["fixes"].items() if name in fixes)


def command(builder: str, given: Mapping[str, str], tag: str, root: str) -> list[str]:
    """The builder's command line.

    :param builder: docker, buildah or podman.
    """
    words = [builder, "build"]
    if builder != "docker":  # BuildKit takes the time from the argument
        words += ["--timestamp", given[epoch.NAME]]
    for name, value in given.items():
        words += ["--build-arg", f"{name}={value}"]
    return [*words, *(("--tag", tag) if tag else ()), root]


def shell(words: Sequence[str]) -> str:
    """A command line for a shell, one option on a line."""
    text = ""
    for word in words:
        text += " \\\n  " if text and (word.startswith("--") or word == words[-1]) else " " if text else ""
        text += shlex.quote(word)
    return text


def _commit(root: str) -> tuple[str, str]:
    """Id and time of the commit that is checked out, if that is all that a build would see."""
    found = _git(root, "status", "--porcelain", "--untracked-files=all", "--ignored", "--", *CONTEXT).splitlines()
    changed = [line for line in found if not _NOT_COPIED.search(line)]
    if changed:
        message = "the checkout is not what is committed, so the image's revision would not be true"
        hint = "commit or remove it"
        raise UsageError(Problem("not_committed", message, file=changed[0][3:], hint=hint))
    told = _git(root, "-c", "log.showSignature=false", "log", "-1", "--format=%H %ct")
    revision, _, time = told.strip().partition(" ")
    return revision, time


def _git(root: str, *words: str) -> str:
    hint = "a build's revision and time come from a git checkout; docs/image.md has the arguments to give by hand"
    try:
        done = subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=False)
    except OSError as error:
        raise UsageError(Problem("git_missing", f"git cannot be run: {error.strerror}", hint=hint)) from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UsageError(Problem("no_checkout", f"git says: {said}", file=root, hint=hint))
    return done.stdout


# -- inside a build ---------------------------------------------------------------------------------------------------


def check(root: str, given: Mapping[str, str], user: tuple[int, int]) -> list[Problem]:
    """What is wrong with the arguments of a build, be it that a variable of the base image hides one.

    :param root: the registry that was copied into the image.
    :param given: the arguments, which a build sees as its environment.
    :param user: the user and group id that the base image runs as.
    """
    missing = [name for name in ("BASE", "PROFILE", *LABELS) if not given.get(name)]
    if missing:
        message = f"the build lacks the arguments {', '.join(missing)}"
        return [Problem("bad_usage", message, hint=_MAKE)]
    lock = find(root, given["PROFILE"])
    names = given.get("FIXES", "").split()
    fixes = [name for name, fix in lock["fixes"].items() if name in names or not fix["opt_in"]]
    base, _, digest = given["BASE"].partition("@")
    problems = [
        _differs(name, said, true)
        for name, said, true in (
            ("LOCK_SHA256", given["LOCK_SHA256"], sha256(dump(lock))),
            ("FIX_REVISIONS", given["FIX_REVISIONS"], revisions(lock, fixes)),
            ("PROFILE", given["PROFILE"], lock["profile"]),
            ("BASE_DIGEST", given["BASE_DIGEST"], digest),
            ("BASE_NAME", _untagged(given["BASE_NAME"]), base),
        )
        if said != true
    ]
    for name, form in (("BASE_DIGEST", _DIGEST), ("FIXPACK_REVISION", "[0-9a-f]{40}|[0-9a-f]{64}")):
        if not re.fullmatch(form, given[name]):
            problems.append(Problem("bad_usage", f"{name} has not the form {form}", found=given[name], hint=_MAKE))
    return [*problems, *_check_user(given.get("BASE_USER", ""), user)]


def _differs(name: str, said: str, true: str) -> Problem:
    message = f"the argument {name} is not true of this build"
    return Problem("wrong_argument", message, expected=true, found=said, hint=_MAKE)


def _check_user(named: str, user: tuple[int, int]) -> list[Problem]:
    """Whether ``USER named`` gives the base image's own user back."""
    import grp
    import pwd

    name, _, group = named.partition(":")
    try:
        uid = int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
        if group:
            gid = int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid
        else:  # as builders take it
            gid = next((each.pw_gid for each in pwd.getpwall() if each.pw_uid == uid), 0)
    except KeyError:
        found = "no such user or group in the base image"
        return [Problem("wrong_user", f"BASE_USER is {named!r}", found=found, hint="see its configuration's User")]
    if (uid, gid) == user:
        return []
    message = "the base image runs as another user than BASE_USER says, which the result would run as"
    hint = f"pass --user {user[0]}:{user[1]} to `fixpack image`, or --build-arg BASE_USER={user[0]}:{user[1]}"
    pair = (f"uid {user[0]}, gid {user[1]}", f"uid {uid}, gid {gid} ({named})")
    return [Problem("wrong_user", message, "", "", 0, *pair, hint=hint)]
