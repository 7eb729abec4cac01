"""The part of the registry that an apply needs, inside the lock: edits and anchors, without YAML.

The lock names the sha256 of every file that it was made from and carries a digest of its own text, so
neither the YAML nor the index can be changed alone without being refused.  It saves an apply the YAML
import and a hundred small checks.
"""

from __future__ import annotations

import os
from typing import Any

from fixpack.errors import Problem, RegistryError
from fixpack.model import Anchor, Edit, Fix, Origin, Profile, Proof, Registry, Release, SourceFile, Upstream

Index = dict[str, Any]


def make(registry: Registry, profile: Profile) -> Index:
    """The edits and anchors of a profile's fixes in its releases."""
    index: Index = {}
    for release in registry.profile_releases(profile):
        edits = []
        used: set[str] = set()
        for name in (*profile.fixes, *profile.opt_in):
            for edit in registry.fixes[name].edits_for(release):
                used.add(edit.anchor)
                edits.append([name, edit.op, edit.anchor, edit.path, edit.code, edit.where])
        index[release.distribution] = {
            "edits": edits,
            "anchors": {
                path: [
                    [anchor.name, anchor.within, anchor.text, anchor.where]
                    for anchor in file.anchors.values()
                    if anchor.name in used
                ]
                for path, file in release.files.items()
            },
            "pins": {path: file.sha256 for path, file in release.files.items()},
        }
    return index


def restore(root: str, lock: dict[str, Any]) -> Registry:
    """A registry of one profile, with what an apply needs and nothing to show to people.

    :param lock: a lock that ``lock.stale`` found to be right.
    :raises RegistryError: if the lock is not of the right form.
    """
    try:
        return _restore(root, lock)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        path = f"profiles/{lock['profile']}.lock.json"
        message = f"the lock cannot be used: {type(error).__name__}: {error}"
        raise RegistryError(Problem("lock_invalid", message, file=path, hint="run `fixpack lock`")) from error


def _restore(root: str, lock: dict[str, Any]) -> Registry:
    edits: dict[str, dict[str, list[Edit]]] = {name: {} for name in lock["fixes"]}
    releases: dict[str, Release] = {}
    for distribution, pinned in lock["releases"].items():
        index = lock["index"][distribution]
        for name, op, anchor, path, code, where in index["edits"]:
            payload = ""
            if code:
                with open(os.path.join(root, "patches", name, code), encoding="utf-8", newline="") as file:
                    payload = file.read()
            edits[name].setdefault(distribution, []).append(Edit(op, anchor, path, code, payload, where))
        files = {
            path: SourceFile(path, sha256, {each[0]: Anchor(*each) for each in index["anchors"][path]})
            for path, sha256 in index["pins"].items()
        }
        release = Release(
            distribution,
            pinned["release"],
            pinned["version"],
            pinned["package"],
            pinned["commit"],
            tuple(pinned["also_commits"]),
            "",
            None,
            files,
            f"anchors/{distribution}/{pinned['release']}.yaml",
        )
        releases[release.ref] = release
    fixes = {
        name: Fix(
            name,
            each["revision"],
            each["title"],
            "",
            "",
            Origin("", "", ""),
            Upstream("", "", ""),
            "",
            "",
            tuple(each["requires"]),
            {distribution: tuple(found) for distribution, found in edits[name].items()},
            {},
            Proof("", {}),
            f"fixes/{name}.yaml",
        )
        for name, each in lock["fixes"].items()
    }
    profile = Profile(
        lock["profile"],
        tuple(lock["aliases"]),
        lock["hardware"],
        False,
        {distribution: pinned["release"] for distribution, pinned in lock["releases"].items()},
        tuple(name for name, each in lock["fixes"].items() if not each["opt_in"]),
        tuple(name for name, each in lock["fixes"].items() if each["opt_in"]),
        f"profiles/{lock['profile']}.yaml",
    )
    return Registry(root, fixes, releases, {profile.name: profile})
