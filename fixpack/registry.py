"""Load the registry: every fix, release and profile, strictly, with all problems in one go."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fixpack.errors import Problem, RegistryError, UsageError
from fixpack.model import Fix, Profile, Registry, Release
from fixpack.registry_files import NAME, RELEASE, folder_names, open_yaml, read_registry_file, same_name, yaml_files
from fixpack.registry_fix import load_fix
from fixpack.registry_release import load_release
from fixpack.text import did_you_mean

if TYPE_CHECKING:
    from fixpack.launch_rules import RuleFile

FOLDERS = ("fixes", "anchors", "patches", "profiles")
#: rules for the serve command: a folder that need not be there
LAUNCH = "launch"


def default_root() -> str:
    """The registry that belongs to this engine: the checkout's, else the one inside the wheel.

    :raises UsageError: if there is neither.
    """
    package = os.path.dirname(os.path.abspath(__file__))
    for root in (os.path.dirname(package), os.path.join(package, "_registry")):
        if all(os.path.isdir(os.path.join(root, folder)) for folder in FOLDERS):
            return root
    raise UsageError(
        Problem(
            "registry_missing",
            "no registry: the folders fixes/, anchors/, patches/ and profiles/ are not beside the engine",
            file=os.path.dirname(package),
            hint="name it with --registry DIR",
        )
    )


def load(root: str) -> Registry:
    """Read and check everything below ``root``.

    :raises RegistryError: with every problem found, each with file and line.
    """
    root = os.path.abspath(root)
    problems: list[Problem] = []
    for folder in FOLDERS:
        if not os.path.isdir(os.path.join(root, folder)):
            problems.append(Problem("registry_missing", f"the registry has no folder {folder}/", file=root))
    if problems:
        raise RegistryError(*problems)
    releases = _load_releases(root, problems)
    fixes: dict[str, Fix] = {}
    for name in yaml_files(root, "fixes", problems):
        fix = load_fix(root, name, problems)
        if fix:
            fixes[fix.id] = fix
    profiles: dict[str, Profile] = {}
    for name in yaml_files(root, "profiles", problems, beside=".lock.json"):
        profile = _load_profile(root, name, problems)
        if profile:
            profiles[profile.name] = profile
    registry = Registry(root, fixes, releases, profiles, _load_launch(root, problems))
    broken = {problem.file for problem in problems}
    _check_payload_folders(registry, problems)
    if not broken:  # cross checks on half-read files would only repeat the first cause
        from fixpack.crosscheck import cross_check

        problems.extend(cross_check(registry))
    if problems:
        raise RegistryError(*problems)
    return registry


def load_releases(root: str) -> dict[str, Release]:
    """The pinned releases alone, by ``distribution@release``: fixes and profiles may be unfinished.

    :raises RegistryError: with every problem of the anchors files.
    """
    problems: list[Problem] = []
    releases = _load_releases(os.path.abspath(root), problems)
    if problems:
        raise RegistryError(*problems)
    return releases


def _load_releases(root: str, problems: list[Problem]) -> dict[str, Release]:
    releases: dict[str, Release] = {}
    for distribution in folder_names(root, "anchors", problems, folders=True):
        for name in yaml_files(root, f"anchors/{distribution}", problems):
            release = load_release(root, distribution, name, problems)
            if release:
                releases[release.ref] = release
    return releases


def find_profile(registry: Registry, name: str) -> Profile:
    """A profile by name or alias.

    :raises UsageError: if there is none, with the nearest names.
    """
    for profile in registry.profiles.values():
        if name == profile.name or name in profile.aliases:
            return profile
    known = [known for profile in registry.profiles.values() for known in (profile.name, *profile.aliases)]
    raise UsageError(unknown("profile", name, known))


def unknown(kind: str, name: str, known: Iterable[str]) -> Problem:
    """The problem of an unknown name."""
    names = sorted(known)
    hint = did_you_mean(name, names) or f"known: {', '.join(names) or 'none'}"
    return Problem(f"unknown_{kind}", f"there is no {kind} {name!r}", hint=hint)


def _check_payload_folders(registry: Registry, problems: list[Problem]) -> None:
    """Every payload belongs to an edit: an orphan would look as if it were applied."""
    root = registry.root
    used: dict[str, set[str]] = {}
    for fix in registry.fixes.values():
        for edits in (*fix.edits.values(), *fix.variants.values()):
            used.setdefault(fix.id, set()).update(edit.code for edit in edits if edit.code)
    for folder in folder_names(root, "patches", problems, folders=True):
        if folder not in registry.fixes:
            if os.path.exists(os.path.join(root, "fixes", folder + ".yaml")):
                continue  # that fix could not be read; its own problem is reported
            problems.append(Problem("orphan_payload", f"patches/{folder}/ belongs to no fix", file=f"patches/{folder}"))
            continue
        for name in folder_names(root, f"patches/{folder}", problems):
            if name not in used.get(folder, ()):
                problems.append(
                    Problem(
                        "orphan_payload",
                        f"no edit of {folder} uses {name}",
                        folder,
                        f"patches/{folder}/{name}",
                        hint="name it in an edit's 'code', or remove it",
                    )
                )


def _load_profile(root: str, name: str, problems: list[Problem]) -> Profile | None:
    path = f"profiles/{name}.yaml"
    before = len(problems)
    top = open_yaml(root, path, problems, "the profile")
    if top is None:
        return None
    same_name(top, "profile", name, RELEASE, "the file's name")
    releases: dict[str, str] = {}
    reader = top.sub("releases")
    for distribution, item in reader.pairs(NAME) if reader else ():
        if isinstance(item.data, str):
            releases[distribution] = item.data
        elif reader:
            reader.bad(f"{distribution!r} must name a release", item.line)
    if reader and not releases:
        reader.bad("the profile pins no release")
    profile = Profile(
        name,
        top.texts("aliases", pattern=RELEASE),
        top.text("hardware"),
        top.flag("experimental"),
        releases,
        top.texts("fixes", required=True, pattern=NAME),
        top.texts("opt-in", pattern=NAME),
        path,
        top.texts("launch", pattern=RELEASE),
    )
    top.done()
    return profile if len(problems) == before else None


def _load_launch(root: str, problems: list[Problem]) -> dict[str, RuleFile]:
    """Every file of ``launch/``, a folder that a registry need not have."""
    found: dict[str, RuleFile] = {}
    if not os.path.lexists(os.path.join(root, LAUNCH)):
        return found
    from fixpack import launch_rules  # most runs that read YAML need no rules

    for name in yaml_files(root, LAUNCH, problems):
        path = f"{LAUNCH}/{name}.yaml"
        try:
            data = read_registry_file(root, path)
        except OSError as error:
            problems.append(Problem("registry_invalid", f"cannot read it: {error}", file=path))
            continue
        made = launch_rules.load(name, data, path, problems)
        if made:
            found[name] = made
    return found
