"""What must hold between the registry's files: names exist, nothing is unused, edits do not collide."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from fixpack.errors import Problem
from fixpack.model import Edit, Fix, Profile, Registry, Release
from fixpack.text import did_you_mean


def cross_check(registry: Registry) -> list[Problem]:
    """Every problem between the files of a registry whose files are each valid."""
    return [
        *_check_requires(registry),
        *_check_refs(registry),
        *_check_profiles(registry),
        *_check_edits(registry),
        *_check_launch(registry),
    ]


def closure(registry: Registry, ids: tuple[str, ...], pinned: Collection[str]) -> tuple[str, ...]:
    """The fixes and all that they require where these distributions are pinned, required ones first, each once."""
    found: list[str] = []

    def visit(fix: str) -> None:
        if fix in found:
            return
        for other in registry.fixes[fix].required(pinned):
            visit(other)
        found.append(fix)

    for fix in ids:
        visit(fix)
    return tuple(found)


def _check_requires(registry: Registry) -> Iterator[Problem]:
    for fix in registry.fixes.values():
        for other in fix.required(fix.requires_with):
            if other not in registry.fixes:
                hint = did_you_mean(other, registry.fixes)
                yield Problem(
                    "unknown_fix", f"{fix.id} requires {other!r}, which is no fix", fix.id, fix.where, hint=hint
                )
        yield from _check_requires_with(registry, fix)
    state: dict[str, int] = {}  # 1 on the way down, 2 done
    path: list[str] = []

    def visit(name: str) -> Iterator[Problem]:
        state[name] = 1
        path.append(name)
        for other in registry.fixes[name].required(registry.fixes[name].requires_with):
            if state.get(other) == 1:
                cycle = [*path[path.index(other) :], other]
                where = registry.fixes[name].where
                yield Problem("cyclic_requires", f"'requires' runs in a circle: {' -> '.join(cycle)}", name, where)
            elif other in registry.fixes and other not in state:
                yield from visit(other)
        path.pop()
        state[name] = 2

    for name in registry.fixes:
        if name not in state:
            yield from visit(name)


def _check_requires_with(registry: Registry, fix: Fix) -> Iterator[Problem]:
    """A condition that never holds, or says nothing new, is a mistake."""
    users = [each for each in registry.profiles.values() if fix.id in (*each.fixes, *each.opt_in)]
    known = {release.distribution for release in registry.releases.values()}
    for distribution, others in fix.requires_with.items():
        if distribution not in known:
            message = f"{fix.id} requires fixes with {distribution!r}, for which there is no anchors file"
            hint = did_you_mean(distribution, known)
            yield Problem("unknown_distribution", message, fix.id, fix.where, hint=hint)
        elif users and not any(distribution in each.releases for each in users):
            message = f"{fix.id} requires fixes with {distribution}, which no profile of it pins"
            yield Problem("unpinned_distribution", message, fix.id, fix.where)
        for other in others:
            if other in fix.requires:
                message = f"{fix.id} requires {other} with {distribution}, and everywhere"
                hint = "name it below 'requires' or below 'requires-with'"
                yield Problem("duplicate_fix", message, fix.id, fix.where, hint=hint)


def _check_refs(registry: Registry) -> Iterator[Problem]:
    distributions = {release.distribution for release in registry.releases.values()}
    for fix in registry.fixes.values():
        for distribution in fix.edits:
            if distribution not in distributions:
                hint = did_you_mean(distribution, distributions)
                message = f"{fix.id} edits {distribution!r}, for which there is no anchors file"
                yield Problem("unknown_distribution", message, fix.id, fix.where, hint=hint)
        for ref in fix.variants:
            if ref not in registry.releases:
                message = f"{fix.id} has a variant for {ref!r}, for which there is no anchors file"
                yield Problem("unknown_release", message, fix.id, fix.where)
        yield from _check_history(registry, fix)
        yield from _check_upstream_has(registry, fix)
        if not any(fix.id in (*profile.fixes, *profile.opt_in) for profile in registry.profiles.values()):
            message = f"no profile uses the fix {fix.id}"
            yield Problem("unused_fix", message, fix.id, fix.where, hint="list it in a profile's fixes or opt-in")


def _check_history(registry: Registry, fix: Fix) -> Iterator[Problem]:
    """An older revision speaks of releases and anchors that are there, else it recognises nothing."""
    for revision in fix.history:
        said = f"revision {revision.number} of {fix.id}"
        for key, edits in revision.edits.items():
            releases = [each for each in registry.releases.values() if key in (each.distribution, each.ref)]
            if not releases:
                message = f"{said} edits {key!r}, for which there is no anchors file"
                yield Problem("unknown_release", message, fix.id, fix.where)
            for edit in edits if releases else ():
                known = any(
                    edit.path.startswith(each.package + "/") if edit.op == "add-file" else each.find(edit.anchor)
                    for each in releases
                )
                if not known:
                    code = "bad_path" if edit.op == "add-file" else "unknown_anchor"
                    message = f"{said} edits {(edit.path or edit.anchor)!r}, which no anchors file of {key} has"
                    yield Problem(code, message, fix.id, fix.where)


def _check_upstream_has(registry: Registry, fix: Fix) -> Iterator[Problem]:
    """What upstream is said to have names a release, a line of it, and tests; and the profiles agree."""
    for ref, has in fix.upstream_has.items():
        file, _, line = has.where.rpartition(":")
        release = registry.releases.get(ref)
        if release is None:
            message = f"{fix.id} says that {ref!r} has it, for which there is no anchors file"
            yield Problem("unknown_release", message, fix.id, file, int(line))
            continue
        found = release.find(has.anchor)
        if found is None or not found[1].text:
            message = f"{fix.id} names a line of upstream's by {has.anchor!r}, an anchor that {release.where} lacks"
            hint = "give that line of upstream's a name there, with its text"
            yield Problem("unknown_anchor", message, fix.id, file, int(line), hint=hint)
        for test in has.green:
            if test not in fix.proof.stock:
                message = f"{test} is said to be green on {ref}, but is not among the tests that stock fails"
                yield Problem("unknown_test", message, fix.id, file, int(line))
        whole = not has.green or set(has.green) >= fix.proof.stock.keys()
        for profile in registry.profiles.values():
            if whole and fix.id in (*profile.fixes, *profile.opt_in) and ref in (
                f"{each}@{name}" for each, name in profile.releases.items()
            ):
                message = f"{profile.name} lists {fix.id}, which {ref} has"
                hint = "take it out of that profile; or name in 'green' the tests that upstream passes, if not all"
                yield Problem("superseded", message, fix.id, profile.where, hint=hint)


def _check_profiles(registry: Registry) -> Iterator[Problem]:
    names: dict[str, str] = {}
    for profile in registry.profiles.values():
        for name in (profile.name, *profile.aliases):
            if name in names:
                message = f"the name {name!r} is also the profile {names[name]}'s"
                yield Problem("duplicate_profile", message, file=profile.where)
            names[name] = profile.name
        if not profile.fixes:
            yield Problem("empty_profile", f"the profile {profile.name} has no fixes", file=profile.where)
        missing = [ref for ref in (f"{d}@{r}" for d, r in profile.releases.items()) if ref not in registry.releases]
        for ref in missing:
            hint = did_you_mean(ref, registry.releases)
            yield Problem("unknown_release", f"there is no anchors file for {ref}", file=profile.where, hint=hint)
        if not missing:
            yield from _check_profile_fixes(registry, profile)


def _check_profile_fixes(registry: Registry, profile: Profile) -> Iterator[Problem]:
    listed = (*profile.fixes, *profile.opt_in)
    for index, name in enumerate(listed):
        if name in listed[:index]:
            message = f"{name} is listed twice (fixes and opt-in count as one list)"
            yield Problem("duplicate_fix", message, name, profile.where)
            continue
        fix = registry.fixes.get(name)
        if fix is None:
            hint = did_you_mean(name, registry.fixes)
            yield Problem("unknown_fix", f"there is no fix {name!r}", name, profile.where, hint=hint)
            continue
        allowed = listed if name in profile.opt_in else profile.fixes
        for other in fix.required(profile.releases):
            if other in registry.fixes and other not in allowed:
                message = f"{name} requires {other}, which is not among this profile's fixes"
                yield Problem("missing_requirement", message, name, profile.where, hint=f"list {other} as well")
        releases = registry.profile_releases(profile)
        if not any(fix.edits_for(release) for release in releases):
            message = f"{name} edits nothing in the releases that the profile pins"
            yield Problem("unused_fix", message, name, profile.where)
        for distribution in fix.edits:
            if distribution not in profile.releases:
                message = f"{name} edits {distribution}, which the profile does not pin"
                yield Problem("unpinned_distribution", message, name, profile.where)


def _check_edits(registry: Registry) -> Iterator[Problem]:
    """Anchors exist; two edits never claim one place.  By name only: bytes are compose's part."""
    done: set[tuple[str, str, str]] = set()
    for profile in registry.profiles.values():
        names = dict.fromkeys((*profile.fixes, *profile.opt_in))
        listed = [registry.fixes[name] for name in names if name in registry.fixes]
        for dist, name in profile.releases.items():
            release = registry.releases.get(f"{dist}@{name}")
            if release is None:
                continue
            claims: dict[tuple[str, str], tuple[Fix, Edit]] = {}
            for fix in listed:
                for edit in fix.edits_for(release):
                    for problem in _check_edit(fix, edit, release, claims):
                        key = (problem.code, problem.message, problem.file)
                        if key not in done:
                            done.add(key)
                            yield problem


def _check_edit(
    fix: Fix, edit: Edit, release: Release, claims: dict[tuple[str, str], tuple[Fix, Edit]]
) -> Iterator[Problem]:
    file, _, line = edit.where.rpartition(":")
    at = int(line)
    if edit.op == "add-file":
        if not edit.path.startswith(release.package + "/") or not edit.path.endswith(".py"):
            message = f"{fix.id} adds {edit.path!r}, which is not a Python file below {release.package}/"
            yield Problem("bad_path", message, fix.id, file, at)
        if edit.path in release.files:
            message = f"{fix.id} adds {edit.path}, which {release.where} pins as an existing file"
            yield Problem("bad_path", message, fix.id, file, at)
        place = ("file", edit.path)
    else:
        found = release.find(edit.anchor)
        if found is None:
            names = [name for source in release.files.values() for name in source.anchors]
            message = f"{fix.id} uses the anchor {edit.anchor!r}, which {release.where} does not define"
            yield Problem("unknown_anchor", message, fix.id, file, at, hint=did_you_mean(edit.anchor, names))
            return
        anchor = found[1]
        if edit.op != "append" and not anchor.text:
            message = f"{edit.op} needs an anchor with a text, but {edit.anchor!r} has none ({anchor.where})"
            yield Problem("bad_anchor", message, fix.id, file, at)
        if edit.op == "append" and anchor.text:
            message = f"append needs an anchor without a text, but {edit.anchor!r} has one ({anchor.where})"
            yield Problem("bad_anchor", message, fix.id, file, at)
        place = ("replace" if edit.op == "delete" else edit.op, edit.anchor)
    if place in claims:
        other, other_edit = claims[place]
        message = f"{fix.id} and {other.id} both {edit.op} at {place[1]!r} (the other is {other_edit.where})"
        yield Problem("overlap", message, fix.id, file, at, hint="merge the two edits, or anchor one elsewhere")
    claims.setdefault(place, (fix, edit))


def _check_launch(registry: Registry) -> Iterator[Problem]:
    """The files of rules that profiles name are there, and each is named."""
    named = {name for profile in registry.profiles.values() for name in profile.launch}
    missing = False
    for profile in registry.profiles.values():
        for name in profile.launch:
            if name not in registry.launch:
                missing = True
                hint = did_you_mean(name, registry.launch)
                yield Problem("unknown_launch", f"there is no launch/{name}.yaml", file=profile.where, hint=hint)
    for name, rules in registry.launch.items():
        if name not in named:
            hint = "list it in a profile's 'launch'"
            yield Problem("unused_launch", f"no profile uses launch/{name}.yaml", file=rules.where, hint=hint)
    if named and not missing:
        from fixpack.launch_lint import check

        yield from check(registry)
