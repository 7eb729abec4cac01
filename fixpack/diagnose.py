"""Say why a target is not the pinned one: line ends, another release, edits, another layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fixpack.compose import Stripped, strip, target_path
from fixpack.errors import Problem
from fixpack.layers import judge
from fixpack.lock import Lock, sha256
from fixpack.model import Edit, Fix, Registry, Release
from fixpack.scope import ScopeError, find_scope, find_text, locate
from fixpack.target import Target
from fixpack.text import plural

REBUILD = "rebuild the layer from the stock image of the pinned release"


def missing_distribution(release: Release, target: Target, fixes: Sequence[str]) -> Problem:
    """The problem of a distribution that was not found."""
    found = ", ".join(f"{each.distribution} in {each.root}" for each in target.located.values())
    return Problem(
        "distribution_missing",
        f"{release.distribution} was not found, but {plural(len(fixes), 'selected fix')} must go into it",
        ", ".join(fixes),
        expected=f"a folder {release.package}/",
        found=found or "no package of the profile",
        hint=f"run with the interpreter that has it, or name it: --site DIR or --source {release.distribution}=DIR",
    )


def stale_revision(fix: Fix, number: int, real: str) -> Problem:
    """The problem of an older revision that the fix's history knows."""
    message = f"revision {number} is in place; the registry has revision {fix.revision}"
    past = fix.past(number)
    why = f" ({past.reason})" if past else ""
    hint = f"`fixpack revert {fix.id}` takes it out, then apply again; or rebuild from the stock image"
    return Problem("stale_revision", message + why, fix.id, real, hint=hint)


def explain_foreign(
    registry: Registry,
    release: Release,
    path: str,
    real: str,
    data: bytes,
    stripped: Stripped,
    users: Sequence[str],
    lock: Lock,
    kept: Callable[[], bytes | None] = lambda: None,
) -> list[Problem]:
    """Why a file is neither the pinned base nor that base with fixes."""
    who = ", ".join(users)
    pinned = release.files[path].sha256
    pins = _pins(registry, release.distribution, path)
    digest = sha256(stripped.base)
    expected = f"sha256 {pinned} ({release.ref})"
    found = f"sha256 {sha256(data)}"
    reason = _byte_reason(registry, release, path, data)
    if reason:
        return [Problem(reason[0], reason[1], who, real, 0, expected, found, hint=reason[2])]
    if stripped.problems:
        return [problem._replace(file=real) for problem in stripped.problems]
    for ref, other in pins.items():
        if other == digest:
            profiles = [
                profile.name
                for profile in registry.profiles.values()
                if f"{release.distribution}@{profile.releases.get(release.distribution, '')}" == ref
            ]
            hint = f"use --profile {profiles[0]}" if profiles else "no profile pins that release"
            message = f"this is the file of {ref}, not of {release.ref}"
            return [Problem("other_release", message, who, real, 0, expected, found, hint=hint)]
    upstream = _upstream_has(registry, release, path, real, stripped, users)
    known = ", ".join(f"{ref} {other[:12]}…" for ref, other in pins.items())
    message = "the file is not a pinned one"
    hint = REBUILD
    inside: list[Problem] = []
    if stripped.applied:
        verdict = judge(registry, release, lock, path, data, stripped, kept)
        inside = [problem._replace(file=real) for problem in verdict.values() if problem]
        where = "inside of what they fix" if inside else "outside of every fixed scope"
        message = f"the file carries {', '.join(stripped.applied)}, and another layer changed it {where}"
        hint = f"take that layer out with its own tool, or {REBUILD} and apply this before it"
    first = Problem("base_sha_unknown", message, who, real, 0, expected, f"{found}; known pins: {known}", hint=hint)
    problems = [*upstream, *inside, first]
    source = release.files[path]
    told = {problem.fix for problem in upstream if problem.code == "superseded"}
    for name in users if not inside else ():  # say which anchors moved: that is what a person has to look at
        if name in told:
            continue
        for edit in registry.fixes[name].edits_for(release):
            anchor = source.anchors.get(edit.anchor)
            place = locate(stripped.base, source, anchor, name) if anchor else None
            if anchor and isinstance(place, Problem):
                problems.append(place._replace(file=real, hint=f"{REBUILD} (the anchor is {anchor.where})"))
    return problems


def superseded_edits(fix: Fix, release: Release, path: str, base: bytes) -> tuple[int, int]:
    """How many of a fix's edits of a file upstream has in its own form, and how many there are."""
    edits = [edit for edit in fix.edits_for(release) if edit.anchor and target_path(release, edit) == path]
    return sum(has_form(edit, release, base) for edit in edits), len(edits)


def has_form(edit: Edit, release: Release, base: bytes) -> bool:
    """Whether upstream's own lines for an edit stand exactly once in its anchor's scope."""
    found = release.find(edit.anchor)
    if not edit.upstream_form or found is None:
        return False
    try:
        scope = find_scope(base, found[1].within)
    except ScopeError:
        return False
    return len(find_text(base, edit.upstream_form, scope.start, scope.end)) == 1


def _upstream_has(
    registry: Registry, release: Release, path: str, real: str, stripped: Stripped, users: Sequence[str]
) -> list[Problem]:
    problems = []
    for name in users:
        if name in stripped.applied:
            continue
        fix = registry.fixes[name]
        there, edits = superseded_edits(fix, release, path, stripped.base)
        if there:
            code = "superseded" if there == edits else "partly_superseded"
            by = f" ({fix.upstream.url})" if fix.upstream.url else ""
            message = f"upstream has {there} of {edits} edits of {name} in this file in its own form{by}"
            hint = f"it retires when {fix.retires_when}; use a profile for this release"
            problems.append(Problem(code, message, name, real, hint=hint))
    return problems


def _pins(registry: Registry, distribution: str, path: str) -> dict[str, str]:
    return {
        ref: release.files[path].sha256
        for ref, release in registry.releases.items()
        if release.distribution == distribution and path in release.files
    }


def _byte_reason(registry: Registry, release: Release, path: str, data: bytes) -> tuple[str, str, str] | None:
    """A known way in which bytes differ from the pinned ones, fixed or not, without a change of text."""
    advice = "reinstall the package, and keep git's autocrlf and editors away from installed files"
    if not data:
        return "empty_file", "the file is empty", "reinstall the package"
    lines = data.replace(b"\r\n", b"\n")
    for code, what, other in (
        ("eol_differs", "has CRLF line ends", lines if lines != data else b""),
        ("bom", "starts with a byte order mark", data[3:] if data.startswith(b"\xef\xbb\xbf") else b""),
        ("no_final_newline", "lacks its final newline", data + b"\n"),
    ):
        stripped = strip(path, other, release, registry.fixes)
        if not stripped.problems and sha256(stripped.base) == release.files[path].sha256:
            return code, f"the file {what}; apart from that it is the pinned one", advice
    return None
