"""Which profile a target was fixed with, or could be: decided by pinned bytes, not by version strings."""

from __future__ import annotations

from collections.abc import Callable

from fixpack import lock
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
    fits: list[tuple[int, Lock, Target]] = []
    names = lock.known(root)
    failures: list[Problem] = []
    for name in names:
        try:
            locked = lock.read(root, name)
            target = open_target(locked)
            registry = restore(root, locked)
        except FixpackError as error:
            failures += error.problems
            continue
        count = 0
        for release in registry.profile_releases(registry.profiles[name]):
            if release.distribution in target.located:
                seen = (look_at(registry, release, locked, path, target, explain=False) for path in release.files)
                count += sum(each.base is not None for each in seen)
        if count:
            fits.append((count, locked, target))
    best = max((count for count, _, _ in fits), default=0)
    found = [(locked, target) for count, locked, target in fits if count == best]
    if len(found) == 1:
        return found[0]
    if found:
        several = ", ".join(locked["profile"] for locked, _ in found)
        message = f"several profiles fit this target: {several}"
        raise UsageError(Problem("no_profile", message, hint="name one with --profile"))
    if failures and len(failures) == len(names):
        raise UsageError(*failures[:1])
    hint = f"name one with --profile to see why; known: {', '.join(names)}"
    raise UsageError(Problem("no_profile", "no profile's pinned files are in this target", hint=hint))
