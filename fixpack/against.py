"""Hold the anchors of pinned releases against another tree: a nightly, a commit, somebody's fork.

Nothing is applied to such a tree.  The answer says, for each release, what an anchors file that is made of its own
for the tree would have to name anew.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from fixpack import cache, sources
from fixpack.errors import Problem, UsageError
from fixpack.lock import sha256
from fixpack.model import Registry, Release
from fixpack.registry import unknown
from fixpack.scope import locate
from fixpack.target import read_file
from fixpack.text import plural


class Comparison(NamedTuple):
    """One release's anchors in the tree."""

    release: str
    files: int
    same: int  # files with exactly the pinned bytes
    anchors: int
    problems: tuple[Problem, ...]  # one for each anchor that does not hold
    broken: dict[str, tuple[str, ...]]  # fix -> its anchors that do not hold
    whole: tuple[str, ...]  # fixes of the release whose anchors all hold

    @property
    def held(self) -> int:
        """How many anchors hold."""
        return self.anchors - len(self.problems)


def tree_of(releases: Mapping[str, Release], name: str) -> tuple[str, str]:
    """The distribution and the folder that ``NAME@RELEASE``, ``NAME@COMMIT`` or ``NAME=DIR`` names.

    :raises UsageError: if there is no such distribution, release or folder.
    :raises SourceError: if the cache has no such tree, or one that is not what it was.
    """
    distribution, equals, folder = name.partition("=")
    if not equals:
        release = sources.find(releases, name)
        return release.distribution, sources.tree(release)
    packages = {each.distribution: each.package for each in releases.values()}
    if distribution not in packages:
        raise UsageError(unknown("distribution", distribution, packages))
    if not os.path.isdir(os.path.join(folder, packages[distribution])):
        message = f"{folder} holds no folder {packages[distribution]}/"
        raise UsageError(Problem("not_a_source_tree", message, file=folder, hint="name the tree's top folder"))
    return distribution, folder


def compare(registry: Registry, distribution: str, tree: str) -> tuple[Comparison, ...]:
    """Each release of the distribution that has anchors; those of which most hold come first.

    :raises UsageError: if none has.
    """
    found = [
        _compare(registry, release, tree)
        for release in registry.releases.values()
        if release.distribution == distribution and any(file.anchors for file in release.files.values())
    ]
    if not found:
        message = f"no release of {distribution} has anchors to hold against anything"
        raise UsageError(Problem("nothing_selected", message))
    found.sort(key=lambda each: (len(each.problems) / each.anchors, -each.same, each.release))
    return tuple(found)


def _compare(registry: Registry, release: Release, tree: str) -> Comparison:
    problems: dict[str, Problem] = {}  # by anchor
    same = anchors = 0
    for file in release.files.values():
        data = read_file(os.path.join(tree, file.path))
        same += isinstance(data, bytes) and sha256(data) == file.sha256
        for anchor in file.anchors.values():
            anchors += 1
            if not isinstance(data, bytes):
                why = data.message if data else "is not there"
                place: object = Problem("file_missing", f"anchor {anchor.name!r}: the file {why}", file=file.path)
            else:
                place = locate(data, file, anchor, "")
            if isinstance(place, Problem):
                problems[anchor.name] = place._replace(hint=f"the anchor is {anchor.where}")
    broken: dict[str, tuple[str, ...]] = {}
    whole = []
    for fix in registry.fixes.values():
        if not any(
            fix.id in (*profile.fixes, *profile.opt_in) and release in registry.profile_releases(profile)
            for profile in registry.profiles.values()
        ):
            continue
        used = [edit.anchor for edit in fix.edits_for(release) if edit.anchor]
        lost = tuple(name for name in used if name in problems)
        if lost:
            broken[fix.id] = lost
        elif used:
            whole.append(fix.id)
    return Comparison(release.ref, len(release.files), same, anchors, tuple(problems.values()), broken, tuple(whole))


def as_text(name: str, tree: str, found: tuple[Comparison, ...]) -> str:
    """The report for people."""
    record = cache.read_record(tree)
    commit = f", commit {record.commit}" if record and record.commit and record.commit not in name else ""
    lines = [f"{name}{commit}:"]
    for each in found:
        anchors, files = f"{each.held} of {plural(each.anchors, 'anchor')} hold", plural(each.files, "file")
        lines.append(f"{each.release}: {anchors}, {each.same} of {files} are the same")
        lines += [f"  ! {problem.file}: {problem.message} ({problem.hint})" for problem in each.problems]
        lines += [f"  not for {fix}: {', '.join(anchors)}" for fix, anchors in each.broken.items()]
        if each.whole:
            lines.append(f"  all that they need: {', '.join(each.whole)}")
    if all(each.same < each.files for each in found):
        lines.append("an apply goes by bytes: this tree needs an anchors file of its own, with its own sha256")
    return "\n".join(lines)
