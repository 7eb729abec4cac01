"""Files that another tool changed after the fixes: judge each fix by its own regions and scopes.

The whole file's hash is not the lock's any more.  What can still be proven: taking every region out
leaves each fixed scope, byte for byte, as it is in the pinned base, and putting the fixes into what
remains gives exactly the file that is there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from fixpack.bytecode import unchecked
from fixpack.compose import Stripped, check_syntax, compose, scopes, strip, target_path
from fixpack.confirm import Selection, expected, fix_states, places, recorded
from fixpack.errors import FixpackError, MismatchError, Problem
from fixpack.lock import Lock, known, read, sha256
from fixpack.model import Fix, Registry, Release
from fixpack.outcome import FileState, Outcome
from fixpack.scope import ScopeError, find_scope, guarded, line_at
from fixpack.target import Target, read_file, resolve


def judge(
    registry: Registry,
    release: Release,
    lock: Lock,
    path: str,
    data: bytes,
    stripped: Stripped,
    kept: Callable[[], bytes | None] = lambda: None,
) -> dict[str, Problem | None]:
    """Each fix that is in a file with foreign changes: None if it is proven intact, else why not.

    :param stripped: the file without regions; it has no problems.
    :param kept: gives the pinned base, if a copy is at hand, to name the lines.
    """
    wanted = lock["releases"][release.distribution]["files"][path]["scopes"]
    verdict: dict[str, Problem | None] = {}
    for name in stripped.applied:
        fix = registry.fixes[name]
        verdict[name] = _missing_region(fix, release, path, stripped) or _scope_problem(
            fix, release, path, data, stripped, wanted, kept
        )
    intact = [only(registry.fixes[name], release, path) for name, problem in verdict.items() if problem is None]
    try:
        again = compose({path: stripped.base}, release, intact).get(path, stripped.base)
    except MismatchError as error:
        return {name: problem or error.problems[0] for name, problem in verdict.items()}
    for fix in intact:
        for scope in scopes(release, [fix], path):
            if _scope_or_none(again, scope) != _scope_or_none(data, scope):
                message = f"a region of {fix.id} is not where the fix puts it"
                verdict[fix.id] = Problem("region_moved", message, fix.id, path, _line_of(data, scope))
    return verdict


def _missing_region(fix: Fix, release: Release, path: str, stripped: Stripped) -> Problem | None:
    wanted = sum(target_path(release, edit) == path for edit in fix.edits_for(release))
    found = stripped.applied[fix.id]
    if found == wanted:
        return None
    message = f"{found} of {wanted} regions of {fix.id} are in the file"
    return Problem("region_missing", message, fix.id, path)


def _scope_problem(
    fix: Fix,
    release: Release,
    path: str,
    data: bytes,
    stripped: Stripped,
    wanted: dict[str, str],
    kept: Callable[[], bytes | None],
) -> Problem | None:
    """A foreign change inside a scope of a fix; None if every scope is the pinned one."""
    for scope in scopes(release, [fix], path):
        try:
            found = guarded(stripped.base, scope)
        except ScopeError as error:
            message = f"another layer changed what {fix.id} fixes: {error}"
            return Problem("edited_in_scope", message, fix.id, path)
        if scope and sha256(found) == wanted[scope]:
            continue
        where = scope or "the module itself"
        first = line_at(data, find_scope(data, scope).start)
        last = line_at(data, find_scope(data, scope).end - 1)
        base = kept()
        lines = list(range(first, last + 1))
        diff: tuple[str, ...] = ()
        said = f"lines {first} to {last}"  # without the base, the whole scope
        if base is not None:
            lines, diff = _changed_lines(guarded(base, scope), found, data, stripped.base)
            shown = ", ".join(str(number) for number in lines[:8]) + ("…" if len(lines) > 8 else "")
            said = ("line " if len(lines) == 1 else "lines ") + shown
        message = f"another layer changed {where} on {said}, where {fix.id} is"
        hint = "take that layer out with its own tool, or rebuild from the stock image and apply this before it"
        return Problem("edited_in_scope", message, fix.id, path, lines[0], diff=diff, hint=hint)
    return None


def _changed_lines(base: bytes, found: bytes, data: bytes, stripped: bytes) -> tuple[list[int], tuple[str, ...]]:
    """The lines of the file that differ from the base of a scope, and a small diff of them."""
    import difflib  # only a failing run pays for it

    old = base.decode("utf-8", "replace").split("\n")
    new = found.decode("utf-8", "replace").split("\n")
    changed: list[int] = []
    diff: list[str] = []
    for tag, start, end, low, high in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            changed += range(low, max(high, low + 1))
            diff += [*(f"- {line}" for line in old[start:end]), *(f"+ {line}" for line in new[low:high])]
    offset = stripped.count(b"\n", 0, stripped.find(found))
    return sorted({_real_line(offset + index, data, stripped) for index in changed}), tuple(diff[:12])


def _real_line(index: int, data: bytes, stripped: bytes) -> int:
    """The 1-based line of the file that is line ``index`` (0-based) of the file without regions."""
    import difflib

    matcher = difflib.SequenceMatcher(None, stripped.split(b"\n"), data.split(b"\n"), autojunk=False)
    for _, start, end, low, high in matcher.get_opcodes():
        if start <= index < end:
            return min(low + index - start, max(high - 1, low)) + 1
    return data.count(b"\n") + 1


def only(fix: Fix, release: Release, path: str) -> Fix:
    """The fix with nothing but its edits of one file."""
    edits = tuple(edit for edit in fix.edits_for(release) if target_path(release, edit) == path)
    return fix._replace(edits={release.distribution: edits}, variants={})


def _scope_or_none(data: bytes, scope: str) -> bytes | None:
    try:
        return guarded(data, scope)
    except ScopeError:
        return None


def _line_of(data: bytes, scope: str) -> int:
    try:
        return line_at(data, find_scope(data, scope).start)
    except ScopeError:
        return 0


def other_pins(root: str, distribution: str, path: str) -> set[str]:
    """The pins of a file in all locks of a registry."""
    pins = set()
    for name in known(root):
        try:
            index = read(root, name)["index"].get(distribution, {"pins": {}})
        except FixpackError:
            continue  # another profile's lock is not this run's business
        pins.add(index["pins"].get(path, ""))
    return pins


def confirm_layered(registry: Registry, lock: Lock, selection: Selection, target: Target) -> Outcome | None:
    """ "confirmed" if every selected fix is proven intact although another layer changed some of its files.

    :returns: the outcome, with ``foreign`` naming those files; None if anything is not proven.
    """
    chosen = (*selection.default, *selection.opt_in)
    layered: dict[tuple[str, str], tuple[str, bytes, Stripped]] = {}
    unasked: dict[str, None] = {}
    for release in registry.profile_releases(registry.profiles[lock["profile"]]):
        for path, entry in lock["releases"][release.distribution]["files"].items():
            real = resolve(target, release.distribution, path) if release.distribution in target.located else None
            data = read_file(real) if isinstance(real, str) else None
            if not isinstance(real, str) or not isinstance(data, bytes) or path not in release.files:
                continue  # what is missing or added is compared by its hash below
            stripped = strip(path, data, release, registry.fixes)
            unasked.update({name: None for name in stripped.applied if name not in chosen})
            if sha256(stripped.base) == entry["base"]:
                continue
            users = [name for name in entry["fixes"] if name in chosen]
            if not users:
                continue
            if stripped.problems or stripped.stale or any(name not in stripped.applied for name in users):
                return None
            if any(judge(registry, release, lock, path, data, stripped).values()) or check_syntax(path, data):
                return None
            if sha256(stripped.base) in other_pins(registry.root, release.distribution, path):
                return None  # not another layer, but another release
            layered[release.distribution, path] = (real, data, stripped)
    if not layered or any(name not in lock["fixes"] for name in unasked):
        return None
    files = []
    for (distribution, path), entry in expected(lock, (*chosen, *unasked)).items():
        if distribution not in target.located:
            return None
        changed = layered.get((distribution, path))
        real = changed[0] if changed else resolve(target, distribution, path)
        data = changed[1] if changed else (read_file(real) if isinstance(real, str) else None)
        if not isinstance(real, str) or not isinstance(data, bytes):
            return None
        digest = sha256(data)
        if (not changed and digest != entry["sha256"]) or unchecked(real, data):
            return None
        if entry["base"] is None and not recorded(target.located[distribution], path, data):
            return None
        files.append(FileState(distribution, path, real, entry["base"] or "", digest, False))
    return Outcome(
        "confirmed",
        lock["profile"],
        fix_states(lock, chosen, dict.fromkeys((*chosen, *unasked), "applied"), tuple(unasked)),
        tuple(files),
        places(lock, target),
        foreign=tuple(real for real, _, _ in layered.values()),
    )


def refuse(outcome: Outcome) -> NoReturn:
    """What ``--strict`` makes of foreign changes.

    :raises MismatchError: always, naming each file.
    """
    message = "another layer changed it, outside of every fixed scope"
    hint = "leave --strict out to accept that, or take that layer out with its own tool"
    raise MismatchError(*(Problem("foreign_layer", message, file=file, hint=hint) for file in outcome.foreign))
