"""The page of one profile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from fixpack.docs_facts import Facts, Notes
from fixpack.docs_fix import proof_state
from fixpack.docs_launch import launch_prohibitions, launch_sections
from fixpack.docs_models import Model
from fixpack.markdown import Linker, code, fenced, prose, table
from fixpack.model import Profile, Registry, Release
from fixpack.text import plural

FOLDER = "../fixes/"


def profile_page(facts: Facts, profile: Profile) -> str:
    """How to apply it and launch with it, its fixes and for which models they matter, and what to know of it."""
    registry = facts.registry
    releases = registry.profile_releases(profile)
    also = f" Also called {', '.join(map(code, profile.aliases))}." if profile.aliases else ""
    state = ", experimental: proven, but not meant for production yet" if profile.experimental else ""
    parts = [
        f"# {profile.name}",
        f"{prose(profile.hardware)}{state}.{also}",
        "## Apply",
        fenced(f"python apply_all.py --profile {profile.name}", language="sh"),
        "## Fixes",
        f"{plural(len(profile.fixes), 'fix')}, all applied by default.",
        _fix_table(facts, profile, profile.fixes),
    ]
    if profile.opt_in:
        parts += [
            "## Opt-in",
            "Off unless named behind the profile.",
            _fix_table(facts, profile, profile.opt_in),
        ]
    if superseded := registry.superseded(profile):
        rows = [
            [f"[{name}]({FOLDER}{name}.md)", release.ref, prose(has.reason) + (f" <{has.url}>" if has.url else "")]
            for name, (release, has) in superseded.items()
        ]
        parts += [
            "## Not needed",
            "Upstream has these; the proof shows that the stock release passes their tests.",
            table(["fix", "release", "upstream's change"], rows),
        ]
    parts += _reasons(facts, profile)
    parts += launch_sections(profile, registry)
    parts += ["## Known issues", *_known_issues(facts, profile)]
    parts += ["## What not to do", _list(_prohibitions(facts, profile))]
    parts += [
        "## Releases",
        table(["distribution", "release", "commit", "source"], [_release_row(each) for each in releases]),
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
        f"Results: [profiles/{lock}](../../profiles/{lock}). Source: [{profile.where}](../../{profile.where}). "
        "[All profiles](README.md)."
    )
    return "\n\n".join(parts) + "\n"


def _fix_table(facts: Facts, profile: Profile, names: Sequence[str]) -> str:
    link = Linker(facts.registry.fixes, folder=FOLDER)
    fixes = [facts.registry.fixes[name] for name in names]
    rows = [
        [
            link.to(fix.id),
            prose(fix.title),
            ", ".join(map(link.to, fix.required(profile.releases))),
            proof_state(facts, fix, profile),
            f"r{fix.revision}",
        ]
        for fix in fixes
    ]
    return table(["fix", "what it does", "requires", "last proof", "revision"], rows)


# -- for which models -------------------------------------------------------------------------------------------------


def _reasons(facts: Facts, profile: Profile) -> Iterator[str]:
    """Why each fix is needed: for every model, then for each model that has reasons of its own."""
    guide = facts.guide
    if guide is None:
        return
    yield "## Required fixes, by model"
    yield prose(guide.sources)
    carried = {*profile.fixes, *profile.opt_in}
    every = {name: why for name, why in guide.every.items() if name in carried}
    own = [
        model
        for model in guide.models
        if (not model.profiles or profile.name in model.profiles) and carried & {*model.fixes, *model.opt_in}
    ]
    if every:
        yield "### Every model"
        yield _reason_table(facts, profile, every, None)
    for model in own:
        yield f"### {prose(model.name)}"
        yield prose(model.about)
        yield _reason_table(facts, profile, {**model.fixes, **model.opt_in}, model)
        also = [name for name in model.required if name in every]
        if also:
            link = Linker(facts.registry.fixes, folder=FOLDER)
            yield f"Of those for every model, the {prose(model.required_by)} requires {', '.join(map(link.to, also))}."
    yield "More on the models: [which fixes matter for which model](../models.md)."


def _reason_table(facts: Facts, profile: Profile, reasons: Mapping[str, str], model: Model | None) -> str:
    link = Linker(facts.registry.fixes, folder=FOLDER)
    rows = []
    for name in (*profile.fixes, *profile.opt_in):
        if name in reasons:
            kind = "opt-in" if name in profile.opt_in else "default"
            needed = f", required by the {prose(model.required_by)}" if model and name in model.required else ""
            rows.append([link.to(name), prose(reasons[name], link), kind + needed])
    return table(["fix", "why it matters", "in this profile"], rows)


# -- what to know -----------------------------------------------------------------------------------------------------


def _known_issues(facts: Facts, profile: Profile) -> Iterator[str]:
    """What was noted by hand, and the limits of the fixes."""
    link = Linker(facts.registry.fixes, folder=FOLDER)
    notes = facts.notes.get(profile.name, Notes())
    if notes.known_issues:
        yield _list(prose(each, link) for each in notes.known_issues)
    limited = [facts.registry.fixes[name] for name in (*profile.fixes, *profile.opt_in)]
    rows = [[link.to(fix.id), prose(fix.limits, link)] for fix in limited if fix.limits]
    if rows:
        yield "What the fixes leave open:"
        yield table(["fix", "limits"], rows)
    if not rows and not notes.known_issues:
        yield "None are known."


def _prohibitions(facts: Facts, profile: Profile) -> Iterator[str]:
    """The rules for the launch command that forbid, what was noted by hand, and what holds for every profile."""
    link = Linker(facts.registry.fixes, folder=FOLDER)
    yield from launch_prohibitions(profile, facts.registry)
    yield from (prose(each, link) for each in facts.notes.get(profile.name, Notes()).do_not)
    yield (
        "Do not upgrade or reinstall a fixed distribution in place: the stock package comes back, and "
        "`fixpack verify` fails until the profile is applied again."
    )
    yield "Do not edit a fixed scope by hand or by another tool: the next confirmation refuses it."


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {each}" for each in items)


# -- what it stands on ------------------------------------------------------------------------------------------------


def _release_row(release: Release) -> list[str]:
    commits = [code(release.commit), *(f"{code(each)} (same bytes)" for each in release.also_commits)]
    source = [f"<{release.git}>"] if release.git else []
    if release.sdist:
        source.append(f"{code(release.sdist.filename)}, sha256 {code(release.sdist.sha256)}")
    return [release.distribution, f"{release.name} ({release.version})", ", ".join(commits), "; ".join(source)]


def _users(registry: Registry, profile: Profile, release: Release, path: str) -> Iterable[str]:
    """The fixes of a profile that edit a pinned file."""
    for name in (*profile.fixes, *profile.opt_in):
        for edit in registry.fixes[name].edits_for(release):
            found = release.find(edit.anchor) if edit.anchor else None
            if found and found[0].path == path:
                yield f"[{name}](../fixes/{name}.md)"
                break
