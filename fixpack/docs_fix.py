"""The page of one fix."""

from __future__ import annotations

from collections.abc import Iterator

from fixpack.docs_facts import Facts
from fixpack.markdown import Linker, code, fenced, prose, table
from fixpack.model import Edit, Fix, Profile, Registry, Release
from fixpack.payload import indented, render
from fixpack.proofs import Recorded, Result, digest
from fixpack.text import plural

UPSTREAM = {
    "not-reported": "not known to be reported",
    "pending": "there is a pull request of others",
    "submitted": "a pull request is open",
    "accepted": "accepted, not in these releases",
    "backport": "fixed there; this is the backport",
    "denied": "declined",
    "inappropriate": "not for upstream in this form",
}
_ORIGIN = {"own": "our own", "backport": "a backport", "cherry-pick": "cherry-picked", "upstream-pr": "a pull request"}

#: Lines of a changed file's diff that are shown at once; a longer one is folded, as is a new file.
LONG = 60


def fix_page(facts: Facts, fix: Fix) -> str:
    """Everything that is known of a fix; long payloads are linked."""
    registry = facts.registry
    link = Linker(registry.fixes, own=fix.id)
    parts = [
        f"# {fix.id}",
        f"{prose(fix.title[:1].upper() + fix.title[1:], link)}. Revision {fix.revision}; {_carried(registry, fix)}.",
    ]
    sections = (
        ("Symptom", prose(fix.symptom, link)),
        ("Cause", prose(fix.cause, link)),
        ("Limits", prose(fix.limits, link) if fix.limits else "None are known."),
        ("Requires", _requires(fix, link)),
        ("Upstream", _upstream(fix, link)),
        ("When it retires", f"When {prose(fix.retires_when.strip().rstrip('.'), link)}."),
    )
    for title, text in sections:
        parts += [f"## {title}", text]
    parts += ["## Edits", *_edits(registry, fix)]
    if facts.diffs is not None:
        parts += ["## Diff", *_diffs(facts, fix)]
    parts += ["## Proof", *_proof(facts, fix)]
    if fix.history:
        parts += ["## Older revisions", "\n".join(f"- r{each.number}: {prose(each.reason)}" for each in fix.history)]
    parts.append(f"Source: [fixes/{fix.id}.yaml](../../fixes/{fix.id}.yaml). [All fixes](README.md).")
    return "\n\n".join(parts) + "\n"


def _requires(fix: Fix, link: Linker) -> str:
    told = [", ".join(link.to(name) for name in fix.requires)] if fix.requires else []
    for distribution, others in fix.requires_with.items():
        told.append(f"where {distribution} is pinned: {', '.join(link.to(name) for name in others)}")
    return "; ".join(told) or "Nothing."


def _carried(registry: Registry, fix: Fix) -> str:
    """Which profiles have it, and how."""
    default = [_profile_link(each) for each in registry.profiles.values() if fix.id in each.fixes]
    opt_in = [_profile_link(each) for each in registry.profiles.values() if fix.id in each.opt_in]
    told = [f"on by default in {', '.join(default)}"] if default else []
    told += [f"opt-in in {', '.join(opt_in)}"] if opt_in else []
    return "; ".join(told) or "in no profile"


def _profile_link(profile: Profile) -> str:
    return f"[{profile.name}](../profiles/{profile.name}.md){' (experimental)' if profile.experimental else ''}"


def _upstream(fix: Fix, link: Linker) -> str:
    """State there and origin."""
    lines = [f"- State: {fix.upstream.status} ({UPSTREAM[fix.upstream.status]})"]
    if fix.upstream.url:
        lines.append(f"- See: <{fix.upstream.url}>")
    if fix.upstream.reason:
        lines.append(f"- {prose(fix.upstream.reason, link)}")
    for ref, has in fix.upstream_has.items():
        part = f"; of the tests below, {', '.join(map(code, has.green))}" if has.green else ""
        lines.append(f"- {ref} has it{part}: {prose(has.reason, link)}{f' <{has.url}>' if has.url else ''}")
    origin = [_ORIGIN[fix.origin.kind]]
    origin += [f"<{fix.origin.url}>"] if fix.origin.url else []
    origin += [f"commit {code(fix.origin.commit)}"] if fix.origin.commit else []
    lines.append(f"- Origin of the fix: {', '.join(origin)}")
    return "\n".join(lines)


def releases_of(registry: Registry, fix: Fix) -> list[Release]:
    """The releases that the fix edits in the profiles that have it, in the registry's order."""
    pinned = {
        release.ref
        for profile in registry.profiles.values()
        if fix.id in (*profile.fixes, *profile.opt_in)
        for release in registry.profile_releases(profile)
    }
    return [each for ref, each in registry.releases.items() if ref in pinned and fix.edits_for(each)]


# -- what it changes --------------------------------------------------------------------------------------------------


def _edits(registry: Registry, fix: Fix) -> Iterator[str]:
    """A list of edits for each set of releases in which they are the same."""
    groups: dict[str, list[Release]] = {}
    for release in releases_of(registry, fix):
        text = "\n\n".join(f"{n}. {_edit(fix, release, edit)}" for n, edit in enumerate(fix.edits_for(release), 1))
        groups.setdefault(f"{release.distribution}\n{text}", []).append(release)
    if not groups:
        yield "None in a profile's releases."
    for key, releases in groups.items():
        yield f"### {releases[0].distribution} {', '.join(each.name for each in releases)}"
        yield key.partition("\n")[2]


def _edit(fix: Fix, release: Release, edit: Edit) -> str:
    """One edit as a list item: what is done, where, and the diff of it as far as it is ours or the anchor's."""
    payload = f"[{edit.code}](../../patches/{fix.id}/{edit.code})"
    if edit.op == "add-file":
        return f"add {code(edit.path)}, {plural(edit.payload.count(chr(10)), 'line')}: {payload}"
    found = release.find(edit.anchor)
    if found is None:  # a registry that was loaded has every anchor
        raise AssertionError(f"{fix.id}: {release.ref} has no anchor {edit.anchor}")
    file, anchor = found
    name = code(edit.anchor)
    what = {
        "insert-before": f"insert {payload} before {name}",
        "insert-after": f"insert {payload} after {name}",
        "replace": f"put {payload} in the place of {name}",
        "delete": f"delete {name}",
        "append": f"append {payload} at {name}, the end of what is named here",
    }[edit.op]
    where = f"in {code(anchor.within)}, " if anchor.within else "in "
    told = f"{what}, {where}{code(file.path)}"
    if edit.upstream_form:
        told += " (upstream's own form is recognised)"
    return f"{told}\n\n{fenced(short_diff(fix, edit, anchor.text), '   ', 'diff')}"


def short_diff(fix: Fix, edit: Edit, anchored: str) -> str:
    """What an edit does at its anchor, without upstream's lines around it: `` `` anchor, ``-`` gone, ``+`` ours."""
    added = [f"+{line}" for line in render(fix, edit, b"").decode().splitlines()]
    sign = "-" if edit.op in ("replace", "delete") else " "
    there = [f"{sign}{line}".rstrip() for line in indented(anchored, b"").decode().splitlines()]
    return "\n".join([*added, *there] if edit.op == "insert-before" else [*there, *added])


def _diffs(facts: Facts, fix: Fix) -> Iterator[str]:
    """The whole diffs, where upstream's source was at hand."""
    assert facts.diffs is not None
    whole = facts.diffs.get(fix.id, ())
    absent = [each.ref for each in releases_of(facts.registry, fix) if each.ref in facts.without]
    if whole:
        yield "This fix alone, on the pinned files. Lines that begin with `# fixpack` mark what is ours in the result."
    for number, each in enumerate(whole):
        yield f"### {each.releases[0].distribution} {', '.join(release.name for release in each.releases)}"
        if len(each.releases) > 1:
            yield f"Line numbers are those of {each.releases[0].name}."
        for part in each.files:
            lines = f"{'new file ' if part.new else ''}{part.path}, {plural(part.text.count(chr(10)), 'line')}"
            long = part.text.count("\n") > LONG
            yield fenced(part.text, language=f"diff fold {lines}" if number or part.new or long else "diff")
    if absent:
        yield f"Not shown for {', '.join(absent)}: not in the source cache when this was built; see the edits above."


# -- how it is proven -------------------------------------------------------------------------------------------------


def _proof(facts: Facts, fix: Fix) -> Iterator[str]:
    """The test file, what it must do on stock, and what it did."""
    yield (
        f"[{fix.proof.test}](../../{fix.proof.test}), run by {code(f'fixpack prove {fix.id}')} on upstream's real code "
        f"on a CPU. On stock, {plural(len(fix.proof.stock), 'test')} must fail with these words (regular expressions), "
        "and every other test of the file must pass; with the fix, alone and together with all others, all must pass."
    )
    yield "\n".join(f"- {code(name)}: {code(pattern)}" for name, pattern in fix.proof.stock.items())
    registry = facts.registry
    profiles = [
        each for each in registry.profiles.values() if fix.id in (*each.fixes, *each.opt_in, *registry.superseded(each))
    ]
    if not profiles:
        return
    yield "The last recorded run; counts are tests that did as they must, of those that ran:"
    yield table(
        ["profile", "result", "red on stock", "green on stock", "fix alone", "with all others", "seconds", "run"],
        [_proof_row(facts, fix, profile) for profile in profiles],
    )


def _proof_row(facts: Facts, fix: Fix, profile: Profile) -> list[str]:
    result = facts.proofs.get(profile.name, Recorded({}, {})).fixes.get(fix.id)
    state = proof_state(facts, fix, profile)
    if result is None:
        return [_profile_link(profile), state, *("-" for _ in range(6))]
    pairs = (f"{good}/{of}" for good, of in (result.red, result.guards, result.alone, result.together))
    return [_profile_link(profile), state, *pairs, f"{result.seconds:.1f}", _run(result)]


def _run(result: Result) -> str:
    versions = [f"{name} {result.versions[name]}" for name in ("python", "torch") if result.versions.get(name)]
    return ", ".join([result.date, *map(prose, versions)])


def proof_state(facts: Facts, fix: Fix, profile: Profile) -> str:
    """``proven``, ``failed``, ``outdated`` (something that matters changed since), or ``not recorded``."""
    result = facts.proofs.get(profile.name, Recorded({}, {})).fixes.get(fix.id)
    if result is None:
        return "not recorded"
    return prose(result.status) if result.digest == digest(facts.registry, profile, fix) else "outdated"
