"""Markdown pages from the registry: one per fix, one per profile, and one table of models.

``pages`` computes them all in memory; ``survey`` compares them with a folder.  Nothing of upstream is shown beyond the
lines that anchors name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from fixpack.docs_launch import launch_prohibitions, launch_sections
from fixpack.docs_models import Guide, models_page
from fixpack.markdown import Linker, code, fenced, prose, table
from fixpack.model import Edit, Fix, Profile, Registry, Release
from fixpack.text import plural

MARK = "<!-- Made by `fixpack docs`; change the registry or docs/models.yaml instead. -->\n\n"

#: folders, relative to docs/, whose Markdown files are all made here
OWNED = ("fixes", "profiles")
MODELS = "models.md"

_UPSTREAM = {
    "not-reported": "not known to be reported",
    "pending": "there is a pull request of others",
    "submitted": "a pull request is open",
    "accepted": "accepted, not in these releases",
    "backport": "fixed there; this is the backport",
    "denied": "declined",
    "inappropriate": "not for upstream in this form",
}
_ORIGIN = {"own": "our own", "backport": "a backport", "cherry-pick": "cherry-picked", "upstream-pr": "a pull request"}


class Survey(NamedTuple):
    """A folder of pages beside what it should hold; paths are relative to it."""

    stale: tuple[str, ...]  # missing or other than it should be
    orphans: tuple[str, ...]  # made by this program once, for a fix or profile that is gone
    foreign: tuple[str, ...]  # in a folder of ours, but not made by this program


def pages(registry: Registry, guide: Guide | None) -> dict[str, str]:
    """Every page, by its path below docs/.

    :param guide: what is known of models; None leaves that page out.
    """
    made = {f"fixes/{fix.id}.md": fix_page(registry, fix) for fix in registry.fixes.values()}
    made["fixes/README.md"] = index_page(registry)
    made.update({f"profiles/{each.name}.md": profile_page(registry, each) for each in registry.profiles.values()})
    if guide:
        made[MODELS] = models_page(registry, guide)
    return {path: MARK + text for path, text in sorted(made.items())}


def survey(folder: str, made: Mapping[str, str]) -> Survey:
    """Compare the pages with a docs folder.

    :raises OSError: if a page is there and cannot be read.
    """
    stale = [path for path, text in made.items() if _read(os.path.join(folder, path)) != text.encode()]
    orphans: list[str] = []
    foreign: list[str] = []
    for path in _present(folder):
        if path not in made:
            mine = (_read(os.path.join(folder, path)) or b"").startswith(MARK.encode())
            (orphans if mine else foreign).append(path)
    return Survey(tuple(stale), tuple(orphans), tuple(foreign))


def _present(folder: str) -> Iterator[str]:
    for owned in OWNED:
        try:
            names = sorted(os.listdir(os.path.join(folder, owned)))
        except FileNotFoundError:
            continue
        yield from (f"{owned}/{name}" for name in names if name.endswith(".md"))
    if os.path.lexists(os.path.join(folder, MODELS)):
        yield MODELS


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


# -- one fix ----------------------------------------------------------------------------------------------------------


def fix_page(registry: Registry, fix: Fix) -> str:
    """Everything that the registry knows of a fix, but its payloads, which are linked."""
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
    )
    for title, text in sections:
        parts += [f"## {title}", text]
    parts += ["## Edits", *_edits(registry, fix)]
    parts += ["## Proof", *_proof(fix)]
    if fix.history:
        parts += ["## Older revisions", "\n".join(f"- r{each.number}: {prose(each.reason)}" for each in fix.history)]
    parts.append(f"Source: [fixes/{fix.id}.yaml](../../fixes/{fix.id}.yaml). All fixes: [README.md](README.md).")
    return "\n\n".join(parts) + "\n"


def _requires(fix: Fix, link: Linker) -> str:
    told = [", ".join(link.to(name) for name in fix.requires)] if fix.requires else []
    for distribution, others in fix.requires_with.items():
        told.append(f"where {distribution} is pinned: {', '.join(link.to(name) for name in others)}")
    return "; ".join(told) or "Nothing."


def _carried(registry: Registry, fix: Fix) -> str:
    """Which profiles have it, and how."""
    default = [_profile_link(each, "../profiles/") for each in registry.profiles.values() if fix.id in each.fixes]
    opt_in = [_profile_link(each, "../profiles/") for each in registry.profiles.values() if fix.id in each.opt_in]
    told = [f"on by default in {', '.join(default)}"] if default else []
    told += [f"opt-in in {', '.join(opt_in)}"] if opt_in else []
    return "; ".join(told) or "in no profile"


def _profile_link(profile: Profile, folder: str) -> str:
    return f"[{profile.name}]({folder}{profile.name}.md){' (experimental)' if profile.experimental else ''}"


def _upstream(fix: Fix, link: Linker) -> str:
    """State there, origin, and when the fix goes."""
    lines = [f"- State: {fix.upstream.status} ({_UPSTREAM[fix.upstream.status]})"]
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
    lines.append(f"- It retires when {prose(fix.retires_when, link)}")
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
    """One edit as a list item: what is done, where, and the lines that the anchor names."""
    payload = f"[{edit.code}](../../patches/{fix.id}/{edit.code})"
    if edit.op == "add-file":
        return f"add {code(edit.path)}: {payload}"
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
    return f"{told}\n\n{fenced(anchor.text, '   ')}" if anchor.text else told


def _proof(fix: Fix) -> Iterator[str]:
    """The test file and what it must do on stock."""
    yield (
        f"[{fix.proof.test}](../../{fix.proof.test}), run by {code(f'fixpack prove {fix.id}')} on upstream's real code "
        f"on a CPU. On stock, {plural(len(fix.proof.stock), 'test')} must fail with these words (regular expressions), "
        "and every other test of the file must pass; with the fix, alone and together with all others, all must pass."
    )
    yield "\n".join(f"- {code(name)}: {code(pattern)}" for name, pattern in fix.proof.stock.items())


# -- all fixes, one profile -------------------------------------------------------------------------------------------


def index_page(registry: Registry) -> str:
    """Every fix, and what it is in each profile."""
    profiles = list(registry.profiles.values())
    listed = dict.fromkeys(name for each in profiles for name in (*each.fixes, *each.opt_in))
    names = [*listed, *(name for name in registry.fixes if name not in listed)]
    names.sort(key=lambda name: all(name not in each.fixes for each in profiles))  # opt-in fixes last

    def kind(profile: Profile, name: str) -> str:
        known = "default" if name in profile.fixes else "opt-in" if name in profile.opt_in else ""
        return known or ("upstream" if name in registry.superseded(profile) else "-")

    rows = [
        [f"[{name}]({name}.md)", prose(registry.fixes[name].title), *(kind(each, name) for each in profiles)]
        for name in names
    ]
    heads = ["fix", "what it does", *(f"[{each.name}](../profiles/{each.name}.md)" for each in profiles)]
    return "\n\n".join(["# Fixes", table(heads, rows)]) + "\n"


def profile_page(registry: Registry, profile: Profile) -> str:
    """Releases with their pins, fixes and opt-in fixes."""
    releases = registry.profile_releases(profile)
    also = f" Also called {', '.join(map(code, profile.aliases))}." if profile.aliases else ""
    parts = [
        f"# {profile.name}",
        f"{prose(profile.hardware)}{', experimental' if profile.experimental else ''}.{also}",
        fenced(f"python apply_all.py --profile {profile.name}", language=""),
        *(launch_sections(profile, registry) if profile.launch else ()),
        "## Releases",
        table(["distribution", "release", "commit", "source"], [_release_row(each) for each in releases]),
        "## Fixes",
        _fix_table(registry, profile, profile.fixes),
    ]
    if profile.opt_in:
        parts += [
            "## Opt-in",
            "Off unless named behind the profile.",
            _fix_table(registry, profile, profile.opt_in),
        ]
    forbidden = launch_prohibitions(profile, registry)
    if forbidden:
        parts += ["## What not to do", "\n".join(f"- {each}" for each in forbidden)]
    if superseded := registry.superseded(profile):
        rows = [
            [f"[{name}](../fixes/{name}.md)", release.ref, prose(has.reason) + (f" <{has.url}>" if has.url else "")]
            for name, (release, has) in superseded.items()
        ]
        parts += [
            "## Not needed",
            "Upstream has these; the proof shows that the stock release passes their tests.",
            table(["fix", "release", "upstream's change"], rows),
        ]
    parts += [
        "## Pinned files",
        "Fixes change these files only, and only if each has these bytes; new files are on the fixes' own pages.",
    ]
    parts.append(
        table(
            ["file", "sha256", "fixes"],
            [
                [
                    code(path),
                    code(file.sha256),
                    ", ".join(_users(registry, profile, release, path)) or "none, see above",
                ]
                for release in releases
                for path, file in release.files.items()
            ],
        )
    )
    lock = f"{profile.name}.lock.json"
    parts.append(
        f"Results: [profiles/{lock}](../../profiles/{lock}). Source: [{profile.where}](../../{profile.where})."
    )
    return "\n\n".join(parts) + "\n"


def _release_row(release: Release) -> list[str]:
    short = " (abbreviated, as the archive names it)" if len(release.commit) < 40 else ""
    commits = [code(release.commit) + short, *(f"{code(each)} (same bytes)" for each in release.also_commits)]
    source = [f"<{release.git}>"] if release.git else []
    if release.sdist:
        source.append(f"{code(release.sdist.filename)}, sha256 {code(release.sdist.sha256)}")
    return [release.distribution, f"{release.name} ({release.version})", ", ".join(commits), "; ".join(source)]


def _fix_table(registry: Registry, profile: Profile, names: Sequence[str]) -> str:
    fixes = [registry.fixes[name] for name in names]
    rows = [
        [
            f"[{fix.id}](../fixes/{fix.id}.md)",
            f"r{fix.revision}",
            prose(fix.title),
            ", ".join(fix.required(profile.releases)),
        ]
        for fix in fixes
    ]
    return table(["fix", "revision", "what it does", "requires"], rows)


def _users(registry: Registry, profile: Profile, release: Release, path: str) -> Iterable[str]:
    """The fixes of a profile that edit a pinned file."""
    for name in (*profile.fixes, *profile.opt_in):
        for edit in registry.fixes[name].edits_for(release):
            found = release.find(edit.anchor) if edit.anchor else None
            if found and found[0].path == path:
                yield f"[{name}](../fixes/{name}.md)"
                break
