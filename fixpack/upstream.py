"""Whether upstream's own code in a target has what a fix would bring: read from the line that the registry names."""

from __future__ import annotations

from fixpack.diagnose import missing_distribution
from fixpack.errors import Problem
from fixpack.lock import Lock
from fixpack.look import look_at
from fixpack.model import Fix, Registry, Release, UpstreamHas
from fixpack.scope import locate
from fixpack.target import Target


def state(
    registry: Registry, fix: Fix, release: Release, has: UpstreamHas, lock: Lock, target: Target
) -> tuple[str, Problem]:
    """The state of a fix that a profile does without: superseded, foreign or missing, and the reason.

    The file is the pinned one below the fixes, or at least holds upstream's line exactly once in its scope.
    """
    found = release.find(has.anchor)
    if found is None:  # a registry that was loaded has every anchor
        raise AssertionError(f"{fix.id}: {release.ref} has no anchor {has.anchor}")
    file, anchor = found
    if release.distribution not in target.located:
        return "missing", missing_distribution(release, target, [fix.id])._replace(fix=fix.id)
    one = look_at(registry, release, lock, file.path, target, explain=False)
    if one.data is None:
        first = one.problems[0] if one.problems else Problem("file_missing", "it is not there", file=one.real)
        return ("missing" if first.code == "file_missing" else "foreign"), first._replace(fix=fix.id)
    if one.base is None:
        place = locate(one.stripped.base, file, anchor, fix.id)
        if isinstance(place, Problem):
            return "foreign", place._replace(file=one.real, hint=f"upstream's line is named in {anchor.where}")
    told = f"upstream has it in {release.ref}: {has.reason.strip().rstrip('.')}"
    return "superseded", Problem("superseded", f"{told}{f' ({has.url})' if has.url else ''}", fix.id, fix.where)
