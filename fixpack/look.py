"""Look at one file of a target: its bytes, the pinned base below the fixes, and what stands in the way."""

from __future__ import annotations

from typing import NamedTuple

from fixpack import receipt
from fixpack.compose import Stripped, strip
from fixpack.diagnose import explain_foreign, stale_revision
from fixpack.errors import Problem
from fixpack.lock import Lock, sha256
from fixpack.model import Registry, Release
from fixpack.payload import render
from fixpack.target import Target, read_file, resolve


class Seen(NamedTuple):
    """One file of the target as it is."""

    real: str  # "" if its path cannot be resolved
    data: bytes | None
    base: bytes | None  # the pinned bytes, recovered; None for a file that fixes add, or if they cannot be proven
    stripped: Stripped  # regions found, and what remains without them
    problems: tuple[Problem, ...]  # why an apply cannot use the file; empty if it can

    @property
    def applied(self) -> dict[str, int]:
        """Fix -> number of its regions that are in place."""
        return self.stripped.applied


def look_at(
    registry: Registry, release: Release, lock: Lock, path: str, target: Target, *, explain: bool = True
) -> Seen:
    """Read and judge a file that fixes of the lock's profile touch, or touched in an older revision.

    :param explain: False says only that something is wrong, which is quicker.
    """
    entry = lock["releases"][release.distribution]["files"].get(path, {"fixes": []})
    users = entry["fixes"]
    who = ", ".join(users)
    nothing = Stripped(b"", {}, (), {})
    real = resolve(target, release.distribution, path)
    if isinstance(real, Problem):
        return Seen("", None, None, nothing, (real._replace(fix=who),))
    data = read_file(real)
    if isinstance(data, Problem):
        return Seen(real, None, None, nothing, (data._replace(fix=who),))
    pinned = release.files.get(path)
    if pinned is None:
        return _added(registry, release, path, real, data, users)
    if data is None:
        message = f"{release.ref} pins this file, but it is not there"
        return Seen(real, None, None, nothing, (Problem("file_missing", message, who, real),))
    pristine = sha256(data) == pinned.sha256
    stripped = Stripped(data, {}, (), {}) if pristine else strip(path, data, release, registry.fixes)
    if stripped.problems or sha256(stripped.base) != pinned.sha256:
        located = target.located[release.distribution]

        def kept() -> bytes | None:
            return receipt.read(located).kept_base(path, pinned.sha256)

        if not explain:
            return Seen(real, data, None, stripped, (Problem("base_sha_unknown", "not the pinned file", who, real),))
        problems = explain_foreign(registry, release, path, real, data, stripped, users, lock, kept)
        return Seen(real, data, None, stripped, tuple(problems))
    return Seen(real, data, stripped.base, stripped, _stale(registry, stripped, real))


def _added(registry: Registry, release: Release, path: str, real: str, data: bytes | None, users: list[str]) -> Seen:
    """A file that a fix adds: absent, exactly the fix's, an older revision's, or somebody else's."""
    if data is None:
        return Seen(real, None, None, Stripped(b"", {}, (), {}), ())
    for name in users:
        for edit in registry.fixes[name].edits_for(release):
            if edit.path == path and render(registry.fixes[name], edit, b"") == data:
                return Seen(real, data, None, Stripped(b"", {name: 1}, (), {}), ())
    stripped = strip(path, data, release, registry.fixes)
    if stripped.stale and not stripped.base and not stripped.problems:
        return Seen(real, data, None, stripped, _stale(registry, stripped, real))
    message = "a file is there that the fix would add, and it is not the fix's"
    first = Problem("file_exists", message, ", ".join(users), real, hint="rebuild from a stock image")
    problems = tuple(problem._replace(file=real) for problem in stripped.problems or (first,))
    return Seen(real, data, None, stripped, problems)


def _stale(registry: Registry, stripped: Stripped, real: str) -> tuple[Problem, ...]:
    return tuple(stale_revision(registry.fixes[name], number, real) for name, number in stripped.stale.items())
