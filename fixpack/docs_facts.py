"""Everything that pages are made of, read once: the registry and what docs/ says beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from fixpack import proofs
from fixpack.docs_models import Guide, read_guide
from fixpack.errors import RegistryError
from fixpack.model import Registry, Release
from fixpack.proofs import Proofs
from fixpack.registry import unknown
from fixpack.registry_files import read_registry_file
from fixpack.strictyaml import Reader, parse

NOTES = "docs/profiles.yaml"


class Notes(NamedTuple):
    """What users of a profile must know that follows from no fix."""

    known_issues: tuple[str, ...] = ()
    do_not: tuple[str, ...] = ()


class FilePart(NamedTuple):
    """One file of a diff."""

    path: str
    new: bool  # whether the fix adds the file
    text: str  # unified


class Diff(NamedTuple):
    """What a fix alone does to one release."""

    releases: tuple[Release, ...]  # more than one if only line numbers differ
    files: tuple[FilePart, ...]  # changed files, then new ones; line numbers are those of the first release


class Facts(NamedTuple):
    """The material of all pages."""

    registry: Registry
    guide: Guide | None = None
    notes: Mapping[str, Notes] = MappingProxyType({})  # by profile
    proofs: Proofs = MappingProxyType({})
    diffs: Mapping[str, tuple[Diff, ...]] | None = None  # by fix; None: pages without upstream's code
    without: tuple[str, ...] = ()  # releases for which diffs were wanted, but their source is not in the cache


def read_facts(registry: Registry) -> Facts:
    """What a registry's docs/ holds.

    :raises RegistryError: if a file there is invalid.
    """
    return Facts(registry, read_guide(registry), read_notes(registry), proofs.read(registry.root))


def read_notes(registry: Registry) -> dict[str, Notes]:
    """What docs/profiles.yaml says, by profile; empty without that file.

    :raises RegistryError: if it is invalid or names an unknown profile.
    """
    if not os.path.lexists(os.path.join(registry.root, NOTES)):
        return {}
    value, problems = parse(read_registry_file(registry.root, NOTES), NOTES)
    found: dict[str, Notes] = {}
    if value is not None and not problems:
        top = Reader(value, NOTES, problems, "the notes")
        for item in top.items("notes", required=True):
            reader = Reader(item, NOTES, problems, "a note")
            new = Notes(reader.texts("known-issues"), reader.texts("do-not"))
            for name in reader.texts("for", required=True):
                if name not in registry.profiles:
                    problem = unknown("profile", name, registry.profiles)
                    problems.append(problem._replace(file=NOTES, line=reader.line_of("for")))
                old = found.get(name, Notes())
                found[name] = Notes(old.known_issues + new.known_issues, old.do_not + new.do_not)
            if not any(new):
                reader.bad("a note needs 'known-issues' or 'do-not'")
            reader.done()
        top.done()
    if problems:
        raise RegistryError(*problems)
    return found
