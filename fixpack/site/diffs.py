"""What each fix alone does to the pinned files, where their source is in the cache."""

from __future__ import annotations

import re

from fixpack import locksmith, sources
from fixpack.compose import compose, touched
from fixpack.difference import unified
from fixpack.docs_facts import Diff, FilePart
from fixpack.docs_fix import releases_of
from fixpack.model import Fix, Registry, Release


def diffs(registry: Registry) -> tuple[dict[str, tuple[Diff, ...]], tuple[str, ...]]:
    """The diffs by fix, and the releases whose source is not in the cache.

    Releases in which a fix changes the same lines share one diff.

    :raises MismatchError: if a file in the cache is not the pinned one.
    """
    trees = {ref: sources.tree(each) for ref, each in registry.releases.items() if sources.have(each)}
    found = {fix.id: _diffs(registry, fix, trees) for fix in registry.fixes.values()}
    return found, tuple(ref for ref in registry.releases if ref not in trees)


def _diffs(registry: Registry, fix: Fix, trees: dict[str, str]) -> tuple[Diff, ...]:
    groups: dict[tuple[str, ...], list[tuple[Release, tuple[FilePart, ...]]]] = {}
    for release in _best_first(registry, releases_of(registry, fix)):
        if release.ref in trees:
            parts = diff(release, fix, trees[release.ref])
            lines = tuple(re.sub(r"(?m)^@@ .*", "@@", part.text) for part in parts)
            groups.setdefault(lines, []).append((release, parts))
    return tuple(Diff(tuple(release for release, _ in group), group[0][1]) for group in groups.values())


def _best_first(registry: Registry, releases: list[Release]) -> list[Release]:
    """Releases of supported profiles before those that only experimental ones pin."""
    supported = {
        each.ref
        for profile in registry.profiles.values()
        if not profile.experimental
        for each in registry.profile_releases(profile)
    }
    return sorted(releases, key=lambda release: release.ref not in supported)


def diff(release: Release, fix: Fix, tree: str) -> tuple[FilePart, ...]:
    """The unified diffs of one fix alone on one release; changed files first, then new ones.

    :raises MismatchError: if a file of the tree is not the pinned one.
    """
    new = touched(release, (fix,))
    base = locksmith.read_base(release, new, tree)
    made = compose(base, release, (fix,))
    order = sorted(new, key=lambda path: (new[path], path))
    return tuple(FilePart(path, new[path], unified(path, base[path], made[path])) for path in order)
