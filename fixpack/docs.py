"""Markdown pages from the registry: fixes, profiles, models, reference, and the page that leads to all.

``pages`` computes them all in memory; ``survey`` compares them with a folder.  Nothing of upstream is shown beyond the
lines that anchors name, unless the facts hold whole diffs, which only the site shows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from fixpack.docs_facts import Facts
from fixpack.docs_fix import UPSTREAM, fix_page
from fixpack.docs_models import models_page
from fixpack.docs_profile import profile_page
from fixpack.docs_reference import reference_page
from fixpack.markdown import Linker, prose, table
from fixpack.model import Profile, Registry
from fixpack.text import plural

MARK = "<!-- Made by `fixpack docs`; change the registry or docs/models.yaml instead. -->\n\n"

#: folders, relative to docs/, whose Markdown files are all made here
OWNED = ("fixes", "profiles")
MODELS = "models.md"
REFERENCE = "reference.md"
START = "README.md"
_SINGLE = (MODELS, REFERENCE, START)

#: hand-written pages in the order in which the first page names them, and what it says of each; others follow by name
GUIDE = {
    "quick-start.md": "a few lines of a Dockerfile, and a few for a running image",
    "launch.md": "rules for the serve command: checked, kept by a wrapper, or rendered for compose and Kubernetes",
    "refusals.md": "every reason code, what it means, and what to do",
    "threat-model.md": "what the hashes and the proofs prove, and what they do not",
    "records.md": "bytecode, RECORD, the receipt, and what pip makes of them",
}


class Survey(NamedTuple):
    """A folder of pages beside what it should hold; paths are relative to it."""

    stale: tuple[str, ...]  # missing or other than it should be
    orphans: tuple[str, ...]  # made by this program once, for a fix or profile that is gone
    foreign: tuple[str, ...]  # in a folder of ours, but not made by this program


def pages(facts: Facts) -> dict[str, str]:
    """Every page, by its path below docs/; without what is known of models, that page is left out.

    :raises OSError: if a hand-written page cannot be read.
    """
    registry = facts.registry
    made = {f"fixes/{fix.id}.md": fix_page(facts, fix) for fix in registry.fixes.values()}
    made["fixes/README.md"] = fixes_page(registry)
    made.update({f"profiles/{each.name}.md": profile_page(facts, each) for each in registry.profiles.values()})
    made["profiles/README.md"] = profiles_page(registry)
    if facts.guide:
        made[MODELS] = models_page(registry, facts.guide)
    made[REFERENCE] = reference_page()
    made[START] = start_page(facts, hand_written(os.path.join(registry.root, "docs")))
    return {path: MARK + text for path, text in sorted(made.items())}


def hand_written(folder: str) -> dict[str, str]:
    """The pages of a docs folder that people wrote, by name: the text of each."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".md") and name not in _SINGLE)
    except FileNotFoundError:
        return {}
    order = list(GUIDE)
    names.sort(key=lambda name: order.index(name) if name in GUIDE else len(order))
    return {name: (_read(os.path.join(folder, name)) or b"").decode("utf-8", "replace") for name in names}


def survey(folder: str, made: Mapping[str, str]) -> Survey:
    """Compare the pages with a docs folder.

    :raises OSError: if a page is there and cannot be read.
    """
    stale = [path for path, text in made.items() if _read(os.path.join(folder, path)) != text.encode()]
    orphans: list[str] = []
    foreign: list[str] = []
    for path in _present(folder):
        data = _read(os.path.join(folder, path)) or b""
        mine = data.startswith(MARK.encode())
        if path not in made:
            (orphans if mine else foreign).append(path)
        elif data and not mine:
            foreign.append(path)
    return Survey(tuple(stale), tuple(orphans), tuple(foreign))


def _present(folder: str) -> Iterator[str]:
    for owned in OWNED:
        try:
            names = sorted(os.listdir(os.path.join(folder, owned)))
        except FileNotFoundError:
            continue
        yield from (f"{owned}/{name}" for name in names if name.endswith(".md"))
    yield from (name for name in _SINGLE if os.path.lexists(os.path.join(folder, name)))


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


# -- pages that lead to others ----------------------------------------------------------------------------------------


def fixes_page(registry: Registry) -> str:
    """Every fix, its state upstream, and what it is in each profile."""
    profiles = list(registry.profiles.values())
    listed = dict.fromkeys(name for each in profiles for name in (*each.fixes, *each.opt_in))
    names = [*listed, *(name for name in registry.fixes if name not in listed)]
    names.sort(key=lambda name: all(name not in each.fixes for each in profiles))  # opt-in fixes last

    def kind(profile: Profile, name: str) -> str:
        known = "default" if name in profile.fixes else "opt-in" if name in profile.opt_in else ""
        return known or ("upstream" if name in registry.superseded(profile) else "-")

    link = Linker(registry.fixes)
    rows = [
        [
            link.to(name),
            prose(registry.fixes[name].title),
            UPSTREAM[registry.fixes[name].upstream.status],
            *(kind(each, name) for each in profiles),
        ]
        for name in names
    ]
    heads = ["fix", "what it does", "upstream", *(f"[{each.name}](../profiles/{each.name}.md)" for each in profiles)]
    parts = ["# Fixes", f"{plural(len(registry.fixes), 'fix')}. Each page tells symptom, cause, change and proof."]
    return "\n\n".join([*parts, table(heads, rows)]) + "\n"


def profiles_page(registry: Registry) -> str:
    """Every profile: hardware, releases, how many fixes."""
    parts = ["# Profiles", "A profile is hardware, one pinned release of each distribution, and the fixes for them."]
    return "\n\n".join([*parts, _profile_table(registry, "")]) + "\n"


def _profile_table(registry: Registry, folder: str) -> str:
    rows = [
        [
            f"[{each.name}]({folder}{each.name}.md)",
            prose(each.hardware),
            ", ".join(release.ref for release in registry.profile_releases(each)),
            str(len(each.fixes)),
            str(len(each.opt_in)),
            "experimental" if each.experimental else "supported",
        ]
        for each in registry.profiles.values()
    ]
    return table(["profile", "hardware", "releases", "fixes", "opt-in", "state"], rows)


def start_page(facts: Facts, written: Mapping[str, str]) -> str:
    """What there is to read, by what one wants to know.

    :param written: the hand-written pages, by name below docs/.
    """
    parts = [
        "# Documentation",
        "Fixpack brings named, proven corrections into installed packages when an image is built: all of them or none, "
        "and only where each file that they touch is, byte for byte, the one on which they were proven.",
        "## Guide",
        "\n".join(
            f"- [{_title(name, text)}]({name}){': ' + GUIDE[name] if name in GUIDE else ''}"
            for name, text in written.items()
        )
        or "There are no hand-written pages.",
        "## Profiles",
        _profile_table(facts.registry, "profiles/"),
        "## Look up",
    ]
    found = [f"[All fixes](fixes/README.md): {plural(len(facts.registry.fixes), 'fix')} by profile, each with a page"]
    found.append("[All profiles](profiles/README.md)")
    if facts.guide:
        found.append(f"[Which fixes matter for which model]({MODELS})")
    found.append(f"[Reference]({REFERENCE}): commands, exit codes, formats")
    parts.append("\n".join(f"- {each}" for each in found))
    return "\n\n".join(parts) + "\n"


def _title(name: str, text: str) -> str:
    """A page's first heading, else its name."""
    found = re.search(r"(?m)^# (.+)$", text)
    return found[1].strip() if found else prose(name.removesuffix(".md"))
