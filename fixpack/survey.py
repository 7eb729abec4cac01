"""The state of every fix of a profile in a target, from the bytes alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from fixpack import receipt, upstream
from fixpack.bytecode import unchecked
from fixpack.compose import check_syntax, target_path
from fixpack.diagnose import missing_distribution, superseded_edits
from fixpack.errors import Problem
from fixpack.layers import judge
from fixpack.lock import Lock
from fixpack.look import Seen, look_at
from fixpack.model import Fix, Registry, Release
from fixpack.payload import MARKER
from fixpack.target import Target

#: states with which a target is as a registry would have it
SOUND = ("applied", "pristine", "superseded")


class FixView(NamedTuple):
    """One fix in a target."""

    id: str
    revision: int
    title: str
    opt_in: bool
    state: str
    edits: int  # how many of its edits are in place
    reason: str  # why it is in that state; "" where the state says it all
    problems: tuple[Problem, ...]
    absent: bool  # no marker of it, of whatever revision, is in any file that was looked at

    @property
    def off(self) -> bool:
        """Whether it is an opt-in fix that is not in place: no fault, even where it could not be brought in."""
        return self.opt_in and self.absent

    @property
    def half(self) -> bool:
        """Whether only some of its edits are in place."""
        return self.state == "pristine" and self.edits > 0


class FileView(NamedTuple):
    """One file that fixes touch."""

    distribution: str
    path: str
    real: str
    state: str  # base | fixed | added | absent | stale | layered | foreign | missing
    fixes: tuple[str, ...]  # in place, by their regions


class ReceiptView(NamedTuple):
    """The receipt of a distribution, compared with the bytes."""

    distribution: str
    path: str
    state: str  # none | agrees | differs | what is wrong with it
    time: str


class Survey(NamedTuple):
    """Everything that was found."""

    profile: str
    fixes: tuple[FixView, ...]
    files: tuple[FileView, ...]
    receipts: tuple[ReceiptView, ...]
    seen: dict[tuple[str, str], Seen]

    @property
    def sound(self) -> bool:
        """Whether every fix is in place, absent or superseded; an opt-in fix counts if something of it is there."""
        return all((fix.state in SOUND and not fix.half) or fix.off for fix in self.fixes)

    @property
    def foreign(self) -> tuple[str, ...]:
        """Files that another layer changed, outside of every fixed scope."""
        return tuple(file.real for file in self.files if file.state == "layered")


def paths_of(registry: Registry, release: Release, lock: Lock) -> list[str]:
    """Every file that a fix of the profile touches in a release, or added in an older revision."""
    paths = dict.fromkeys(lock["releases"][release.distribution]["files"])
    for name in lock["fixes"]:
        for past in registry.fixes[name].history:
            paths.update(dict.fromkeys(path for edit in past.edits_for(release) if (path := edit.path)))
    return list(paths)


def survey(registry: Registry, lock: Lock, target: Target) -> Survey:
    """Look at every file and judge every fix.  Reads only.

    :param registry: the whole registry, not one restored from the lock: it knows histories and upstream's forms.
    """
    releases = registry.profile_releases(registry.profiles[lock["profile"]])
    seen = {
        (release.distribution, path): look_at(registry, release, lock, path, target)
        for release in releases
        if release.distribution in target.located
        for path in paths_of(registry, release, lock)
    }
    verdicts = {
        (release.distribution, path): _verdict(registry, release, lock, target, path, seen[release.distribution, path])
        for release in releases
        for path in paths_of(registry, release, lock)
        if (release.distribution, path) in seen
    }
    marked = {match[3].decode() for one in seen.values() if one.data is not None for match in MARKER.finditer(one.data)}
    fixes = []
    for name, entry in lock["fixes"].items():
        state, edits, problems = _state(registry.fixes[name], releases, target, seen, verdicts)
        reason = problems[0].message if problems else ""
        about = (entry["revision"], entry["title"], entry["opt_in"])
        fixes.append(FixView(name, *about, state, edits, reason, tuple(problems), name not in marked))
    for name, (release, has) in registry.superseded(registry.profiles[lock["profile"]]).items():
        fix = registry.fixes[name]
        state, problem = upstream.state(registry, fix, release, has, lock, target)
        fixes.append(FixView(name, fix.revision, fix.title, False, state, 0, problem.message, (problem,), True))
    files = []
    for (distribution, path), one in seen.items():
        state = _file_state(one, verdicts[distribution, path])
        files.append(FileView(distribution, path, one.real, state, tuple({**one.applied, **one.stripped.stale})))
    receipts = tuple(
        _receipt(lock, target, each.distribution, seen) for each in releases if _touched(each, lock, target)
    )
    return Survey(lock["profile"], tuple(fixes), tuple(files), receipts, seen)


def _touched(release: Release, lock: Lock, target: Target) -> bool:
    return bool(lock["releases"][release.distribution]["files"]) and release.distribution in target.located


def _verdict(
    registry: Registry, release: Release, lock: Lock, target: Target, path: str, one: Seen
) -> dict[str, Problem | None]:
    """For a file with foreign changes: its fixes, each intact (None) or not."""
    unproven = one.data is not None and one.base is None and path in release.files
    if not unproven or one.stripped.problems or one.stripped.stale or not one.applied or one.data is None:
        return {}
    located = target.located[release.distribution]

    def kept() -> bytes | None:
        return receipt.read(located).kept_base(path, release.files[path].sha256)

    verdict = judge(registry, release, lock, path, one.data, one.stripped, kept)
    broken = None if any(verdict.values()) else check_syntax(path, one.data)
    if broken:
        verdict = dict.fromkeys(verdict, broken)
    return {name: problem._replace(file=one.real) if problem else None for name, problem in verdict.items()}


def _file_state(one: Seen, verdict: dict[str, Problem | None]) -> str:
    if one.stripped.stale and all(problem.code == "stale_revision" for problem in one.problems):
        return "stale"
    if verdict and not any(verdict.values()):
        return "layered"
    if one.problems:
        return "missing" if one.data is None and one.problems[0].code == "file_missing" else "foreign"
    if one.data is None:
        return "absent"
    if one.base is None:
        return "added"
    return "fixed" if one.applied else "base"


def _state(
    fix: Fix,
    releases: tuple[Release, ...],
    target: Target,
    seen: dict[tuple[str, str], Seen],
    verdicts: dict[tuple[str, str], dict[str, Problem | None]],
) -> tuple[str, int, list[Problem]]:
    """One fix's state, how many of its edits are in place, and what it was concluded from."""
    here = total = upstream = edits = 0
    problems: list[Problem] = []
    missing: list[Problem] = []
    stale: list[Problem] = []
    for release in releases:
        touched = dict.fromkeys(path for edit in fix.edits_for(release) if (path := target_path(release, edit)))
        if touched and release.distribution not in target.located:
            missing.append(missing_distribution(release, target, [fix.id])._replace(fix=fix.id))
            continue
        for path in touched:
            one = seen[release.distribution, path]
            wanted = sum(target_path(release, edit) == path for edit in fix.edits_for(release))
            here += one.applied.get(fix.id, 0)
            total += wanted
            if path in release.files and one.base is None and one.data is not None:
                there, of = superseded_edits(fix, release, path, one.stripped.base)
                upstream, edits = upstream + there, edits + of
            elif path in release.files:
                edits += sum(
                    bool(edit.anchor) and target_path(release, edit) == path for edit in fix.edits_for(release)
                )
            if fix.id in one.stripped.stale:
                stale += [problem for problem in one.problems if problem.fix == fix.id]
                continue
            if verdicts[release.distribution, path].get(fix.id, False) is None:
                continue  # another layer changed the file elsewhere
            if one.problems and not _others_are_stale(fix, one):
                where = missing if one.problems[0].code == "file_missing" else problems
                where += _of(fix, one, verdicts[release.distribution, path])
            elif fix.id in one.applied:
                problems += _bytecode(fix, one)
        stale += _left_behind(fix, release, seen)
    if upstream and not here:
        code = "superseded" if upstream == edits else "partly-superseded"
        message = f"upstream has {upstream} of its {edits} edits in its own form; it retires when {fix.retires_when}"
        return code, here, [Problem(code.replace("-", "_"), message, fix.id, fix.where)]
    if problems:
        return "foreign", here, problems
    if missing:
        return "missing", here, missing
    if stale:
        return "stale", here, stale
    if here == total:
        return "applied", here, []
    if here:
        message = f"half in place, {here} of {total} edits; apply completes it"
        return "pristine", here, [Problem("half_applied", message, fix.id)]
    return "pristine", here, []


def _others_are_stale(fix: Fix, one: Seen) -> bool:
    """Whether a file's only problem is that other fixes in it are of known older revisions: its base is proven."""
    return one.base is not None and all(
        problem.code == "stale_revision" and problem.fix != fix.id for problem in one.problems
    )


def _of(fix: Fix, one: Seen, verdict: dict[str, Problem | None]) -> Iterator[Problem]:
    """Those of a file's problems that concern a fix."""
    own = verdict.get(fix.id)
    if own:
        yield own
        return
    for problem in one.problems:
        if not problem.fix or fix.id in problem.fix.split(", ") or problem.code in ("marker_broken", "unknown_fix"):
            yield problem
    if not any(fix.id in problem.fix.split(", ") for problem in one.problems):
        others = ", ".join(dict.fromkeys(problem.fix for problem in one.problems if problem.fix))
        yield Problem("foreign_file", f"its file has problems of {others or 'others'}", fix.id, one.real)


def _bytecode(fix: Fix, one: Seen) -> list[Problem]:
    assert one.data is not None
    return [problem._replace(fix=fix.id) for problem in unchecked(one.real, one.data)]


def _left_behind(fix: Fix, release: Release, seen: dict[tuple[str, str], Seen]) -> list[Problem]:
    """Files that only an older revision added."""
    now = {edit.path for edit in fix.edits_for(release) if edit.path}
    found = []
    for past in fix.history:
        for edit in past.edits_for(release):
            one = seen.get((release.distribution, edit.path)) if edit.path and edit.path not in now else None
            if one and fix.id in one.stripped.stale:
                found += [problem for problem in one.problems if problem.fix == fix.id]
    return found


def _receipt(lock: Lock, target: Target, distribution: str, seen: dict[tuple[str, str], Seen]) -> ReceiptView:
    """The receipt, and whether it says of each file what the bytes say."""
    from fixpack.lock import sha256

    found = receipt.read(target.located[distribution])
    if found.state != "read":
        return ReceiptView(distribution, found.path, found.state, "")
    files: dict[str, Any] = found.body["files"]
    carried = {
        path for (dist, path), one in seen.items() if dist == distribution and (one.applied or one.stripped.stale)
    }
    right = carried == files.keys() and all(
        one.data is not None and sha256(one.data) == files[path]["result_sha256"]
        for (dist, path), one in seen.items()
        if dist == distribution and path in files
    )
    return ReceiptView(distribution, found.path, "agrees" if right else "differs", found.body["time"])
