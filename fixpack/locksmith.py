"""Make a profile's lock from the pinned sources: every base, every result, every registry byte."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any

from fixpack.errors import MismatchError, Problem
from fixpack.lock import MAX_OPT_IN_PER_FILE, SCHEMA, Lock, key_of, sha256
from fixpack.model import Fix, Profile, Registry, Release


def make(registry: Registry, profile: Profile, trees: dict[str, str]) -> Lock:
    """Compute a profile's lock from the pinned sources.

    :param trees: distribution -> folder of its pinned source tree.
    :raises MismatchError: if a source is not the pinned one, an anchor is not exactly once in it, two
        edits overlap, or a result is not valid Python.
    """
    from fixpack import index

    fixes = [registry.fixes[name] for name in (*profile.fixes, *profile.opt_in)]
    releases = {}
    for release in registry.profile_releases(profile):
        releases[release.distribution] = {
            "release": release.name,
            "version": release.version,
            "package": release.package,
            "commit": release.commit,
            "also_commits": list(release.also_commits),
            "files": _files(profile, release, fixes, trees),
        }
    return {
        "schema": SCHEMA,
        "profile": profile.name,
        "aliases": list(profile.aliases),
        "hardware": profile.hardware,
        "fixes": {
            fix.id: {
                "revision": fix.revision,
                "title": fix.title,
                "opt_in": fix.id in profile.opt_in,
                "requires": list(fix.required(profile.releases)),
            }
            for fix in fixes
        },
        "releases": releases,
        "index": index.make(registry, profile),
        "registry": _registry_hashes(registry, profile, fixes),
    }


def _files(profile: Profile, release: Release, fixes: Sequence[Fix], trees: dict[str, str]) -> dict[str, Any]:
    from fixpack.compose import check_syntax, compose, target_path, touched

    paths = touched(release, fixes)
    base = read_base(release, paths, trees.get(release.distribution, ""))
    by_file: dict[str, list[Fix]] = {path: [] for path in paths}
    for fix in fixes:
        for path in dict.fromkeys(target_path(release, edit) for edit in fix.edits_for(release)):
            by_file[path].append(fix)
    files: dict[str, Any] = {}
    checked: set[bytes] = set()
    problems: list[Problem] = []
    for path, users in sorted(by_file.items()):
        opt_in = [fix.id for fix in users if fix.id in profile.opt_in]
        if len(opt_in) > MAX_OPT_IN_PER_FILE:
            message = f"{len(opt_in)} opt-in fixes touch {path}; at most {MAX_OPT_IN_PER_FILE} can be combined"
            raise MismatchError(Problem("too_many_opt_in", message, file=path))
        results: dict[str, str | None] = {}
        for count in range(len(opt_in) + 1):
            for chosen in itertools.combinations(opt_in, count):
                selected = [fix for fix in users if fix.id not in opt_in or fix.id in chosen]
                composed = compose(base, release, selected).get(path, base[path])
                results[key_of(chosen)] = None if composed is None else sha256(composed)
                if composed is not None and composed not in checked:
                    checked.add(composed)
                    problem = check_syntax(path, composed)
                    problems += [problem] if problem else []
        pinned = release.files.get(path)
        files[path] = {
            "base": pinned.sha256 if pinned else None,
            "fixes": [fix.id for fix in users],
            "results": results,
            "scopes": _scopes(release, users, path, base[path]),
        }
    if problems:
        raise MismatchError(*problems)
    return files


def _scopes(release: Release, users: Sequence[Fix], path: str, data: bytes | None) -> dict[str, str]:
    """The hash of each edited scope of the base: what must be untouched when another layer changed the file."""
    from fixpack.compose import scopes
    from fixpack.scope import guarded

    if data is None:
        return {}
    return {dotted: sha256(guarded(data, dotted)) for dotted in sorted(scopes(release, users, path)) if dotted}


def read_base(release: Release, paths: Iterable[str], tree: str) -> dict[str, bytes | None]:
    """The pinned bytes of files, from a source tree; None for files that fixes add.

    :raises MismatchError: if a file is missing or is not the pinned one.
    """
    base: dict[str, bytes | None] = {}
    problems = []
    for path in paths:
        pinned = release.files.get(path)
        if pinned is None:
            base[path] = None
            if os.path.lexists(os.path.join(tree, path)):
                message = f"{path} is to be added, but {release.ref} has it already"
                problems.append(Problem("file_exists", message, file=path))
            continue
        try:
            with open(os.path.join(tree, path), "rb") as file:
                data = file.read()
        except OSError as error:
            message = f"{release.ref} pins {path}, which cannot be read: {error.strerror}"
            problems.append(Problem("file_missing", message, file=path))
            continue
        if sha256(data) != pinned.sha256:
            message = f"the sha256 that {release.where} pins is not that of this file of the source"
            hint = f"if the source is {release.ref}, pin what was found"
            problems.append(Problem("base_sha_unknown", message, "", path, 0, pinned.sha256, sha256(data), hint=hint))
        base[path] = data
    if problems:
        raise MismatchError(*problems)
    return base


def _registry_hashes(registry: Registry, profile: Profile, fixes: Sequence[Fix]) -> dict[str, str]:
    files = {profile.where}
    files.update(release.where for release in registry.profile_releases(profile))
    files.update(rules.where for rules in registry.rule_files(profile))
    for fix in fixes:
        files.add(fix.where)
        for edits in (*fix.edits.values(), *fix.variants.values()):
            files.update(f"patches/{fix.id}/{edit.code}" for edit in edits if edit.code)
    hashes = {}
    for path in sorted(files):
        with open(os.path.join(registry.root, path), "rb") as file:
            hashes[path] = sha256(file.read())
    return hashes
