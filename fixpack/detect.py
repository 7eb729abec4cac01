"""Which profile a target was fixed with, or could be.

Pinned bytes decide.  Only between profiles that they do not tell apart, receipts and version strings give
a hint: a wrong guess ends in a refusal, because every verb then checks the bytes of that profile.
"""

from __future__ import annotations

from collections.abc import Callable

from fixpack import lock, receipt
from fixpack.errors import FixpackError, Problem, UsageError
from fixpack.index import restore
from fixpack.lock import Lock
from fixpack.look import look_at
from fixpack.target import Target


def detect(root: str, open_target: Callable[[Lock], Target]) -> tuple[Lock, Target]:
    """The one profile with the most files whose pinned base is in the target.

    :param open_target: gives the target for a candidate's distributions.
    :raises UsageError: if none or several fit.
    """
    fits: list[tuple[tuple[int, int, int], Lock, Target]] = []
    names = lock.known(root)
    failures: list[Problem] = []
    any_found = False
    for name in names:
        try:
            locked = lock.read(root, name)
            target = open_target(locked)
            registry = restore(root, locked)
        except FixpackError as error:
            failures += error.problems
            continue
        any_found |= bool(target.located)
        count = 0
        for release in registry.profile_releases(registry.profiles[name]):
            if release.distribution in target.located:
                seen = (look_at(registry, release, locked, path, target, explain=False) for path in release.files)
                count += sum(each.base is not None for each in seen)
        if count:
            fits.append(((count, *_hints(locked, target)), locked, target))
    best = max((rank for rank, _, _ in fits), default=None)
    found = [(locked, target) for rank, locked, target in fits if rank == best]
    if len(found) == 1:
        return found[0]
    if found:
        several = ", ".join(locked["profile"] for locked, _ in found)
        message = f"several profiles fit this target: {several}"
        raise UsageError(Problem("no_profile", message, hint="name one with --profile"))
    if failures and len(failures) == len(names):
        raise UsageError(*failures[:1])
    if not any_found:
        hint = "run with the interpreter that has vLLM, or name it: --site DIR, --root DIR or --source NAME=DIR"
        raise UsageError(Problem("no_profile", "no package that a profile is for is in this target", hint=hint))
    hint = f"name one with --profile to see why; known: {', '.join(names)}"
    raise UsageError(Problem("no_profile", "no profile's pinned files are in this target", hint=hint))


def _hints(locked: Lock, target: Target) -> tuple[int, int]:
    """How many receipts name the profile, and how many versions are those of its releases."""
    receipts = [receipt.read(each).body.get("profile") for each in target.located.values()]
    versions = [locked["releases"][each.distribution]["version"] == each.version for each in target.located.values()]
    return receipts.count(locked["profile"]), sum(versions)
