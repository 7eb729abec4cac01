"""Apply: look at every file, compute everything in memory, check everything, then write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from fixpack.bytecode import outside, unchecked
from fixpack.claim import journal_roots, roots_of, take
from fixpack.commit import commit
from fixpack.compose import check_syntax, compose, scopes, target_path, touched
from fixpack.confirm import Selection, expected, fix_states, places, remarks
from fixpack.diagnose import missing_distribution
from fixpack.errors import MismatchError, Problem, RegistryError
from fixpack.index import restore
from fixpack.journal import pending
from fixpack.layers import confirm_layered
from fixpack.ledger import entries
from fixpack.lock import Lock, sha256
from fixpack.look import Seen, look_at
from fixpack.model import Fix, Profile, Registry, Release
from fixpack.outcome import FileState, Outcome
from fixpack.steps import Change
from fixpack.target import Target, resolve


class Plan(NamedTuple):
    """Everything that an apply would write, all of it checked."""

    changes: list[Change]
    files: tuple[FileState, ...]
    states: dict[str, str]
    unasked: tuple[str, ...]  # fixes in place that were not named


def apply(
    root: str, lock: Lock, selection: Selection, target: Target, *, write: bool, update_record: bool = False
) -> Outcome:
    """Bring every selected fix in, or change nothing.

    :param root: the registry's folder.
    :param lock: a lock for which ``lock.stale`` found nothing.
    :param write: False computes and checks everything and writes nothing.
    :param update_record: rewrite RECORD's rows of changed files too.
    :returns: the outcome: applied, confirmed, or would-apply.  "confirmed" may name files that another
        layer changed outside of every fixed scope.
    :raises MismatchError: if the target is not what the fixes were proven on; nothing was written.
    :raises WriteError: if a file could not be written; all was put back.
    """
    notes: list[str] = []
    with ExitStack() as locks:
        roots = roots_of(target)
        if write or any(pending(each) for each in roots):
            notes = take(target, locks, lock)
        plan = compute(root, lock, selection, target, update_record)
        if isinstance(plan, Outcome):
            return plan._replace(notes=tuple(notes))
        if plan.changes and write:
            commit(plan.changes, *journal_roots(target, plan.changes))
    chosen = (*selection.default, *selection.opt_in)
    action = "confirmed"
    if plan.changes:
        action = "applied" if write else "would-apply"
    states = dict(plan.states)
    if action == "applied":
        states = {fix: "written" if state == "pristine" else state for fix, state in states.items()}
    return Outcome(
        action,
        lock["profile"],
        fix_states(lock, chosen, states, plan.unasked),
        plan.files,
        places(lock, target),
        notes=(*notes, *remarks(lock, selection, target)),
        records=tuple(sorted({change.path for change in plan.changes} - {file.real for file in plan.files})),
    )


def compute(root: str, lock: Lock, selection: Selection, target: Target, update_record: bool = False) -> Plan | Outcome:
    """The plan, from the lock's index; reads only.  Where that fails: confirmed, if only another layer's
    changes are in the way; else once more with the whole registry, which can explain.

    :raises MismatchError: if the target is not what the fixes were proven on.
    """
    registry = restore(root, lock)
    try:
        return make_plan(registry, lock, selection, target, update_record, explain=False)
    except MismatchError:
        outcome = confirm_layered(registry, lock, selection, target)
        if outcome:
            return outcome
        try:
            from fixpack.registry import load

            whole = load(root)
        except (ModuleNotFoundError, RegistryError):  # no PyYAML, or another profile's file is broken:
            whole = registry  # what is wrong with the target comes first, if with fewer words
        return make_plan(whole, lock, selection, target, update_record)


def make_plan(
    registry: Registry,
    lock: Lock,
    selection: Selection,
    target: Target,
    update_record: bool = False,
    *,
    explain: bool = True,
) -> Plan:
    """Look at the target and compute what has to be written.

    :raises MismatchError: with every problem of every fix and file.
    """
    profile = registry.profiles[lock["profile"]]
    _check_lock(registry, profile, lock)
    chosen = (*selection.default, *selection.opt_in)
    problems: list[Problem] = []
    seen: dict[tuple[str, str], Seen] = {}
    faults: list[tuple[tuple[str, ...], Problem]] = []  # the fixes that a problem concerns, and the problem
    for release in registry.profile_releases(profile):
        seen.update(_look(registry, release, lock, chosen, target, faults, explain))
    unasked = _in_place(registry, lock, seen, chosen, problems)
    problems += [fault for users, fault in faults if any(fix in chosen or fix in unasked for fix in users)]
    if problems:
        raise MismatchError(*problems)
    wanted = expected(lock, (*chosen, *unasked))
    changes: list[Change] = []
    files: list[FileState] = []
    for release in registry.profile_releases(profile):
        results = _results(registry, release, seen, (*chosen, *unasked), problems)
        for path, data in results.items():
            entry = wanted[release.distribution, path]
            if sha256(data) != entry["sha256"]:
                message = f"the result for {path} is not the one in the lock"
                pair = (entry["sha256"], sha256(data))
                problems.append(Problem("result_sha_differs", message, "", path, 0, *pair, hint="run `fixpack lock`"))
            now = seen[release.distribution, path]
            changed = now.data != data
            if changed:
                edited = scopes(release, [registry.fixes[name] for name in (*chosen, *unasked)], path)
                problem = check_syntax(path, data, edited)
                problems += [problem] if problem else []
                problems += outside(now.real)
                changes.append(Change(now.real, now.data, data))
            else:
                problems += unchecked(now.real, data)
            files.append(FileState(release.distribution, path, now.real, entry["base"] or "", entry["sha256"], changed))
        if results and not problems:
            dist = release.distribution
            kept = [name for name in lock["fixes"] if name in (*chosen, *unasked)]
            here = [name for name in kept if registry.fixes[name].edits_for(release)]
            before = {path: seen[dist, path][:3] for path in results}
            changed = any(before[path][1] != data for path, data in results.items())
            try:
                changes += entries(
                    lock, target, dist, here, before, results, changed=changed, update_record=update_record
                )
            except MismatchError as error:
                problems += error.problems
    if problems:
        raise MismatchError(*problems)
    changes.sort(key=lambda change: change.old is not None)  # new modules first: what imports them comes after
    states = {fix: _state(registry, profile.releases, fix, seen) for fix in (*chosen, *unasked)}
    return Plan(changes, tuple(files), states, unasked)


def _check_lock(registry: Registry, profile: Profile, lock: Lock) -> None:
    """A lock that names other files or fixes than its registry was merged or edited by hand."""
    fixes = [registry.fixes[name] for name in (*profile.fixes, *profile.opt_in)]
    for release in registry.profile_releases(profile):
        users: dict[str, set[str]] = {}
        for fix in fixes:
            for path in touched(release, [fix]):
                users.setdefault(path, set()).add(fix.id)
        said = {path: set(entry["fixes"]) for path, entry in lock["releases"][release.distribution]["files"].items()}
        if users != said or [fix.id for fix in fixes] != list(lock["fixes"]):
            message = f"the lock cannot be used: its files of {release.distribution} are not those that its fixes touch"
            path = f"profiles/{profile.name}.lock.json"
            raise RegistryError(Problem("lock_invalid", message, file=path, hint="run `fixpack lock`"))


def _look(
    registry: Registry,
    release: Release,
    lock: Lock,
    chosen: Sequence[str],
    target: Target,
    faults: list[tuple[tuple[str, ...], Problem]],
    explain: bool,
) -> dict[tuple[str, str], Seen]:
    """Read every file that the profile's fixes touch."""
    entries = lock["releases"][release.distribution]["files"]
    located = target.located.get(release.distribution)
    if located is None:
        needed = [fix for entry in entries.values() for fix in entry["fixes"] if fix in chosen]
        if needed:
            users = tuple(dict.fromkeys(needed))
            faults.append((users, missing_distribution(release, target, users)))
        return {}
    seen: dict[tuple[str, str], Seen] = {}
    for path, entry in entries.items():
        one = look_at(registry, release, lock, path, target, explain=explain)
        if not one.problems:
            seen[release.distribution, path] = one
        faults += [(tuple(entry["fixes"]), problem) for problem in one.problems]
    return seen


def _in_place(
    registry: Registry,
    lock: Lock,
    seen: dict[tuple[str, str], Seen],
    chosen: Sequence[str],
    problems: list[Problem],
) -> tuple[str, ...]:
    """Opt-in fixes that are in place although this command does not name them: they stay."""
    found: dict[str, None] = {}
    for (_, path), one in seen.items():
        for fix in one.applied:
            if fix in chosen or fix in found:
                continue
            if fix not in lock["fixes"]:
                message = f"{fix} is in place, but the profile {lock['profile']} does not have it"
                problems.append(Problem("other_profile", message, fix, path, hint="rebuild from a stock image"))
                continue
            found[fix] = None
    releases = registry.profiles[lock["profile"]].releases
    for fix in found:
        for other in registry.fixes[fix].required(releases):
            if other not in chosen and other not in found:
                message = f"{fix} is in place and requires {other}"
                problems.append(Problem("missing_requirement", message, fix, hint=f"name {other} as well"))
        if _state(registry, releases, fix, seen) == "pristine":
            message = f"{fix} is in place in part, and was not asked for"
            hint = f"name {fix} to complete it, or rebuild from a stock image"
            problems.append(Problem("partly_applied", message, fix, hint=hint))
    return tuple(found)


def _results(
    registry: Registry,
    release: Release,
    seen: dict[tuple[str, str], Seen],
    fixes: Sequence[str],
    problems: list[Problem],
) -> dict[str, bytes]:
    base = {path: one.base for (distribution, path), one in seen.items() if distribution == release.distribution}
    try:
        return compose(base, release, [registry.fixes[name] for name in fixes])
    except MismatchError as error:
        problems += error.problems
        return {}


def _state(registry: Registry, releases: dict[str, str], fix: str, seen: dict[tuple[str, str], Seen]) -> str:
    """applied if every region of the fix is in place already, else pristine."""
    for distribution, name in releases.items():
        release = registry.releases[f"{distribution}@{name}"]
        for path in {target_path(release, edit) for edit in registry.fixes[fix].edits_for(release)}:
            wanted = sum(target_path(release, edit) == path for edit in registry.fixes[fix].edits_for(release))
            one = seen.get((distribution, path))  # absent: its problem is reported already
            if one and one.applied.get(fix, 0) != wanted:
                return "pristine"
    return "applied"


def apply_selection(registry: Registry, releases: Iterable[Release], fixes: Sequence[str], target: Target) -> None:
    """Apply any fixes and all that they require to pristine trees, without a lock.

    For proofs and locks only: what a user's target gets is always checked against a lock.

    :raises MismatchError: if a tree is not the pinned one or an edit does not fit.
    """
    from fixpack.crosscheck import closure
    from fixpack.locksmith import read_base

    releases = tuple(releases)
    pinned = [release.distribution for release in releases]
    chosen: list[Fix] = [registry.fixes[name] for name in closure(registry, tuple(fixes), pinned)]
    changes: list[Change] = []
    problems: list[Problem] = []
    for release in releases:
        paths = touched(release, chosen)
        if not paths:
            continue
        base = read_base(release, paths, target.located[release.distribution].root)
        for path, data in compose(base, release, chosen).items():
            real = resolve(target, release.distribution, path)
            problem = real if isinstance(real, Problem) else check_syntax(path, data)
            if isinstance(real, Problem) or problem:
                problems += [problem] if problem else []
                continue
            changes.append(Change(real, base[path], data))
    if problems:
        raise MismatchError(*problems)
    if changes:
        commit(changes, *journal_roots(target, changes))
