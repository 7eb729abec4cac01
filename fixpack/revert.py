"""Take fixes out again: compute the files without them, prove what is taken out, and write as one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from fixpack import receipt
from fixpack.claim import journal_roots, roots_of, take
from fixpack.commit import commit
from fixpack.compose import check_syntax, compose, scopes, strip, target_path
from fixpack.diagnose import missing_distribution
from fixpack.errors import MismatchError, Problem, UsageError
from fixpack.journal import pending
from fixpack.ledger import entries
from fixpack.lock import Lock, sha256
from fixpack.look import Seen, look_at
from fixpack.model import Fix, Registry, Release
from fixpack.payload import MARKER
from fixpack.steps import Change
from fixpack.survey import paths_of
from fixpack.target import Target
from fixpack.text import did_you_mean

#: problems that are somebody else's change
REFUSED = (
    *("base_sha_unknown", "edited_in_scope", "edited_inside", "foreign_region", "region_missing", "region_moved"),
    *("eol_differs", "bom", "no_final_newline", "file_exists"),
)


class Reverted(NamedTuple):
    """What a revert did, or would do."""

    profile: str
    out: tuple[str, ...]  # fixes that were taken out
    stay: tuple[str, ...]  # fixes that remain
    files: tuple[tuple[str, str], ...]  # real path, "restored" | "rewritten" | "removed"
    written: bool
    notes: tuple[str, ...]


class _Files(NamedTuple):
    """One distribution's files before and after."""

    before: dict[str, tuple[str, bytes | None, bytes | None]]
    after: dict[str, bytes | None]


def revert(registry: Registry, lock: Lock, names: Sequence[str], target: Target, *, write: bool) -> Reverted:
    """Take the named fixes out, or all that are in place.

    :param registry: the whole registry.
    :raises UsageError: for names that the profile does not have, and if a fix that stays requires one that goes.
    :raises MismatchError: if a file holds anything that would be lost; nothing was written.
    :raises WriteError: if a file could not be written; all was put back.
    """
    unknown = [name for name in names if name not in lock["fixes"]]
    if unknown:
        hints = [did_you_mean(name, lock["fixes"]) or f"its fixes: {', '.join(lock['fixes'])}" for name in unknown]
        raise UsageError(
            *(
                Problem("unknown_fix", f"the profile {lock['profile']} has no fix {name!r}", name, hint=hint)
                for name, hint in zip(unknown, hints, strict=True)
            )
        )
    with ExitStack() as locks:
        roots = roots_of(target)
        here = [each for each in _releases(registry, lock) if each.distribution in target.located]
        notes: list[str] = []
        if write or any(pending(each) for each in roots):
            more = [(each.distribution, path) for each in here for path in paths_of(registry, each, lock)]
            notes = take(target, locks, lock, more)
        changes, result = _plan(registry, lock, names, target)
        if changes and write:
            commit(changes, *journal_roots(target, changes))
    return result._replace(written=bool(changes) and write, notes=tuple(notes))


def _plan(registry: Registry, lock: Lock, names: Sequence[str], target: Target) -> tuple[list[Change], Reverted]:
    releases = [each for each in _releases(registry, lock) if each.distribution in target.located]
    seen = {
        (release.distribution, path): _seen(registry, release, lock, path, target, names)
        for release in releases
        for path in paths_of(registry, release, lock)
    }
    carried = {name for one in seen.values() for name in (*one.applied, *one.stripped.stale)}
    out = tuple(name for name in lock["fixes"] if name in carried and (not names or name in names))
    if not names:
        out += tuple(sorted(carried - lock["fixes"].keys()))
    stay = tuple(name for name in lock["fixes"] if name in carried and name not in out)
    _check_requirements(registry, lock, out, stay)
    problems = _absent(registry, lock, names, target)
    problems += [problem for one in seen.values() for problem in _obstacles(one, out, bool(names))]
    changes: list[Change] = []
    files: list[tuple[str, str]] = []
    for release in releases if not problems else ():
        mine = _files(registry, release, lock, seen, out, stay, problems)
        for path, data in mine.after.items():
            real, now, base = mine.before[path]
            if now == data:
                continue
            changes.append(Change(real, now, data))
            files.append((real, "removed" if data is None else "restored" if data == base else "rewritten"))
        changed = any(mine.before[path][1] != data for path, data in mine.after.items())
        if changed and not problems:
            here = [name for name in stay if registry.fixes[name].edits_for(release)]
            dist = release.distribution
            changes += entries(lock, target, dist, here, mine.before, mine.after, changed=True, update_record=False)
    if problems:
        raise MismatchError(*problems)
    changes.sort(key=lambda change: change.new is None)  # new modules last: until then somebody may import them
    return changes, Reverted(lock["profile"], out, stay, tuple(files), False, ())


def _absent(registry: Registry, lock: Lock, names: Sequence[str], target: Target) -> list[Problem]:
    """A package that is not there: to say that nothing is in place would be to guess."""
    problems = []
    for release in _releases(registry, lock):
        users = [name for name in names or lock["fixes"] if registry.fixes[name].edits_for(release)]
        if users and release.distribution not in target.located:
            problem = missing_distribution(release, target, users)
            hint = f"{problem.hint}; or name the fixes to take out of what is there"
            problems.append(problem._replace(message=f"{release.distribution} was not found", hint=hint))
    return problems


def _releases(registry: Registry, lock: Lock) -> tuple[Release, ...]:
    return registry.profile_releases(registry.profiles[lock["profile"]])


def _seen(registry: Registry, release: Release, lock: Lock, path: str, target: Target, names: Sequence[str]) -> Seen:
    """A file; where only the registry does not know a region any more, by the base that the receipt kept."""
    one = look_at(registry, release, lock, path, target)
    unknown = {problem.code for problem in one.stripped.problems}
    if not unknown or unknown - {"stale_revision", "unknown_fix"} or one.data is None or path not in release.files:
        return one
    found = {match.group(3).decode(): int(match.group(4)) for match in MARKER.finditer(one.data)}
    if names and not found.keys() <= set(names):
        return one  # a fix that stays could not be put in again
    kept = receipt.read(target.located[release.distribution])
    base = kept.kept_base(path, release.files[path].sha256)
    said = kept.body.get("files", {}).get(path, {}).get("result_sha256")
    if base is None or said != sha256(one.data) or not only_regions_differ(base, one.data):
        return one
    return Seen(one.real, one.data, base, one.stripped._replace(base=base, applied={}, stale=found, problems=()), ())


def only_regions_differ(base: bytes, data: bytes) -> bool:
    """Whether everything outside of the marked regions stands in the base, in order, from start to end."""
    marks = list(MARKER.finditer(data))
    pieces = []
    at = 0
    for begin, end in zip(marks[::2], marks[1::2], strict=False):
        if begin.group(2) != b"begin" or end.group(2) != b"end" or begin.group(3, 4, 5) != end.group(3, 4, 5):
            return False
        pieces.append(data[at : begin.start()])
        at = min(end.end() + 1, len(data))
    if len(marks) % 2 or not marks:
        return False
    last = data[at:]
    if not base.startswith(pieces[0]) or not base.endswith(last):
        return False
    position = len(pieces[0])
    for piece in pieces[1:]:
        found = base.find(piece, position, len(base) - len(last))
        if found < 0:
            return False
        position = found + len(piece)
    return position <= len(base) - len(last)


def _check_requirements(registry: Registry, lock: Lock, out: Sequence[str], stay: Sequence[str]) -> None:
    problems = []
    for name in stay:
        needed = [other for other in lock["fixes"][name]["requires"] if other in out]
        if needed:
            message = f"{name} stays and requires {', '.join(needed)}"
            problems.append(Problem("missing_requirement", message, name, hint=f"name {name} as well"))
    if problems:
        raise UsageError(*problems)


def _obstacles(one: Seen, out: Sequence[str], named: bool) -> list[Problem]:
    """What keeps a file from being reverted; a stale fix that goes is no obstacle."""
    goes = {*one.stripped.stale} & {*out}
    kept = [problem for problem in one.problems if not (problem.code == "stale_revision" and problem.fix in goes)]
    concerned = not named or one.data is None or bool({*one.applied, *one.stripped.stale} & {*out})
    if not kept or not concerned or (one.data is not None and not MARKER.search(one.data)):
        return []  # a file without any region of ours is not touched
    if one.data is None and kept[0].code == "file_missing":
        return []
    hint = "revert would lose it: take that layer out with its own tool, then revert; or rebuild from a stock image"
    return [problem._replace(hint=hint) if problem.code in REFUSED else problem for problem in kept]


def _files(
    registry: Registry,
    release: Release,
    lock: Lock,
    seen: dict[tuple[str, str], Seen],
    out: Sequence[str],
    stay: Sequence[str],
    problems: list[Problem],
) -> _Files:
    """The files of a distribution without the fixes that go."""
    mine = {path: one for (distribution, path), one in seen.items() if distribution == release.distribution}
    going = {path: one for path, one in mine.items() if {*one.applied, *one.stripped.stale} & {*out}}
    bases = {path: one.base for path, one in mine.items()}
    kept = [registry.fixes[name] for name in stay]
    before = {path: (one.real, one.data, one.base) for path, one in mine.items() if one.applied or path in going}
    after = {path: data for path, (_, data, _) in before.items()}  # what only holds fixes that stay
    for path in [path for path in after if path not in going and path in release.files and bases[path] is None]:
        del before[path], after[path]  # and another layer's changes: nothing to say about its base
    try:
        results = compose(bases, release, [_within(fix, release, going) for fix in kept])
    except MismatchError as error:
        problems += error.problems
        return _Files({}, {})
    for path, one in going.items():
        after[path] = data = results.get(path, one.base)
        if path in release.files and (data is None or strip(path, data, release, registry.fixes).base != one.base):
            raise AssertionError(f"{path}: the result does not give the base back")
        problem = (
            check_syntax(path, data, scopes(release, kept, path)) if data is not None and data != one.base else None
        )
        problems += [problem] if problem else []
    return _Files(before, after)


def _within(fix: Fix, release: Release, going: dict[str, Seen]) -> Fix:
    """A fix that stays, with its edits of the rewritten files in which it is: a half applied one is not completed."""
    edits = tuple(
        edit
        for edit in fix.edits_for(release)
        if (path := target_path(release, edit)) in going and fix.id in going[path].applied
    )
    return fix._replace(edits={release.distribution: edits}, variants={})
