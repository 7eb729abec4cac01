"""Load the registry: every fix, release and profile, strictly, with all problems in one go."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fixpack.errors import Problem, RegistryError, UsageError
from fixpack.lock import ignored
from fixpack.model import (
    OPS,
    ORIGIN_KINDS,
    UPSTREAM_STATUS,
    Anchor,
    Edit,
    Fix,
    Origin,
    PastEdit,
    Profile,
    Proof,
    Registry,
    Release,
    Revision,
    Sdist,
    SourceFile,
    Upstream,
    UpstreamHas,
)
from fixpack.payload import read_payload
from fixpack.strictyaml import MAX_BYTES, Reader, Value, parse
from fixpack.text import did_you_mean

if TYPE_CHECKING:
    from fixpack.launch_rules import RuleFile

NAME = r"[a-z0-9]+(-[a-z0-9]+)*"
RELEASE = r"[a-z0-9]+([.-][a-z0-9]+)*"
SHA256 = r"[0-9a-f]{64}"
COMMIT = r"[0-9a-f]{40}"
#: a release whose archive is pinned by sha256 may name its commit as the archive does: abbreviated
COMMIT_SHORT = r"[0-9a-f]{9,40}"
URL = r"https://[!-~]+"
SCOPE = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*"
PATH = r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+"
CODE = r"[a-z0-9_]+\.py"
PROOF_TEST = r"tests/fixes/test_[a-z0-9_]+\.py"

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
    for name in _yaml_files(root, "fixes", problems):
        fix = _load_fix(root, name, problems)
        if fix:
            fixes[fix.id] = fix
    profiles: dict[str, Profile] = {}
    for name in _yaml_files(root, "profiles", problems, beside=".lock.json"):
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
    for distribution in _folder(root, "anchors", problems, folders=True):
        for name in _yaml_files(root, f"anchors/{distribution}", problems):
            release = _load_release(root, distribution, name, problems)
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


# -- files ------------------------------------------------------------------------------------------------------------


def _folder(root: str, folder: str, problems: list[Problem], folders: bool = False) -> list[str]:
    """The entries of a registry folder that are files (or folders), sorted; anything else is a problem."""
    names: list[str] = []
    lowered: dict[str, str] = {}
    try:
        with os.scandir(os.path.join(root, folder)) as scanned:
            entries = sorted((each for each in scanned if not ignored(each.name)), key=lambda entry: entry.name)
    except OSError as error:
        problems.append(Problem("registry_invalid", f"cannot be listed: {error.strerror}", file=folder))
        return []
    for entry in entries:
        right = entry.is_dir(follow_symlinks=False) if folders else entry.is_file(follow_symlinks=False)
        if not right:
            want = "a folder" if folders else "an ordinary file"
            problems.append(
                Problem("registry_invalid", f"{folder}/{entry.name} is not {want}", file=f"{folder}/{entry.name}")
            )
            continue
        twin = lowered.setdefault(entry.name.lower(), entry.name)
        if twin != entry.name:
            problems.append(
                Problem(
                    "registry_invalid",
                    f"{entry.name!r} and {twin!r} differ only in case",
                    file=f"{folder}/{entry.name}",
                )
            )
            continue
        names.append(entry.name)
    return names


def _yaml_files(root: str, folder: str, problems: list[Problem], beside: str = "") -> Iterator[str]:
    """Names, without ``.yaml``, of the YAML files of a folder."""
    for name in _folder(root, folder, problems):
        if name.endswith(".yaml"):
            yield name[: -len(".yaml")]
        elif not (beside and name.endswith(beside)):
            problems.append(
                Problem(
                    "registry_invalid",
                    f"{folder}/ holds {name!r}, which is not a .yaml file",
                    file=f"{folder}/{name}",
                    hint="remove it, or name it *.yaml",
                )
            )


def read_registry_file(root: str, path: str) -> bytes:
    """The bytes of a registry file.

    :raises OSError: if it is not an ordinary file or cannot be read.
    """
    full = os.path.join(root, path)
    status = os.lstat(full)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"{path} is not an ordinary file")
    if status.st_size > MAX_BYTES:
        raise OSError(f"{path} has {status.st_size} bytes; at most {MAX_BYTES} are allowed")
    with open(full, "rb") as file:
        return file.read()


def _read(root: str, path: str, problems: list[Problem]) -> Value | None:
    try:
        data = read_registry_file(root, path)
    except OSError as error:
        problems.append(Problem("registry_invalid", f"cannot read it: {error}", file=path))
        return None
    value, found = parse(data, path)
    problems.extend(found)
    return None if found else value


# -- anchors ----------------------------------------------------------------------------------------------------------


def _load_release(root: str, distribution: str, name: str, problems: list[Problem]) -> Release | None:
    path = f"anchors/{distribution}/{name}.yaml"
    value = _read(root, path, problems)
    if value is None:
        return None
    before = len(problems)
    top = Reader(value, path, problems, "the anchors file")
    _same(top, "distribution", distribution, NAME, "its folder")
    _same(top, "release", name, RELEASE, "the file's name")
    package = top.text("package", pattern=r"[a-z_][a-z0-9_]*")
    sdist_reader = top.sub("sdist", required=False)
    sdist = None
    if sdist_reader:
        sdist = Sdist(
            sdist_reader.text("filename", pattern=r"[A-Za-z0-9_.+-]+\.tar\.gz"),
            sdist_reader.text("sha256", pattern=SHA256),
        )
        sdist_reader.done()
    files: dict[str, SourceFile] = {}
    files_reader = top.sub("files")
    for file_path, file_value in files_reader.pairs(PATH) if files_reader else ():
        file_reader = Reader(file_value, path, problems, file_path)
        if (package and not file_path.startswith(package + "/")) or not file_path.endswith(".py"):
            file_reader.bad(f"{file_path!r} is not a Python file below {package}/")
        sha256 = file_reader.text("sha256", pattern=SHA256)
        anchors: dict[str, Anchor] = {}
        anchors_reader = file_reader.sub("anchors", required=False)
        for anchor_name, anchor_value in anchors_reader.pairs(NAME) if anchors_reader else ():
            taken = next((other for other in files.values() if anchor_name in other.anchors), None)
            if taken and anchors_reader:
                anchors_reader.bad(
                    f"the anchor {anchor_name!r} is already in {taken.path}; names are unique in a release",
                    anchors_reader.line_of(anchor_name),
                )
            anchors[anchor_name] = _load_anchor(anchor_name, anchor_value, path, problems)
        file_reader.done()
        files[file_path] = SourceFile(file_path, sha256, anchors)
    release = Release(
        distribution,
        name,
        top.text("version", pattern=r"[0-9][0-9A-Za-z.+]*"),
        package,
        top.text("commit", pattern=COMMIT_SHORT if sdist else COMMIT),
        top.texts("also-commits", pattern=COMMIT),
        top.text("git", "", URL),
        sdist,
        files,
        path,
    )
    top.done()
    return release if len(problems) == before else None


def _load_anchor(name: str, value: Value, path: str, problems: list[Problem]) -> Anchor:
    reader = Reader(value, path, problems, f"the anchor {name!r}")
    within = reader.text("within", "", SCOPE)
    text = reader.text("text", "")
    reader.done()
    text = text[:-1] if text.endswith("\n") else text
    _check_lines(reader, "text", text)
    return Anchor(name, within, text, f"{path}:{reader.line_of('text') or value.line}")


def _check_lines(reader: Reader, key: str, text: str) -> None:
    """Whole lines of a file, the first one not indented."""
    lines = text.split("\n")
    line = reader.line_of(key)
    if text and (lines[0] != lines[0].lstrip() or not lines[0]):
        reader.bad(f"{key!r} must start with its first line, not indented (the indentation is the file's)", line)
    if text and not lines[-1].strip():
        reader.bad(f"{key!r} must not end with an empty line", line)
    if "\t" in text:
        reader.bad(f"{key!r} holds a tab", line)


def _same(reader: Reader, key: str, wanted: str, pattern: str, whose: str) -> str:
    """A field that must repeat what the file's place says."""
    found = reader.text(key, pattern=pattern)
    if found and found != wanted:
        reader.bad(f"{key!r} is {found!r}, but {whose} says {wanted!r}", reader.line_of(key))
    return found


# -- fixes ------------------------------------------------------------------------------------------------------------


def _load_fix(root: str, name: str, problems: list[Problem]) -> Fix | None:
    path = f"fixes/{name}.yaml"
    value = _read(root, path, problems)
    if value is None:
        return None
    before = len(problems)
    top = Reader(value, path, problems, "the fix", fix=name)
    _same(top, "id", name, NAME, "the file's name")
    origin = Origin("own", "", "")
    reader = top.sub("origin")
    if reader:
        origin = Origin(
            reader.text("kind", oneof=ORIGIN_KINDS), reader.text("url", "", URL), reader.text("commit", "", COMMIT)
        )
        if origin.kind not in ("", "own") and not origin.url and not origin.commit:
            reader.bad(f"an origin of kind {origin.kind!r} needs a url or a commit")
        reader.done()
    upstream = Upstream("not-reported", "", "")
    reader = top.sub("upstream")
    if reader:
        upstream = Upstream(
            reader.text("status", oneof=UPSTREAM_STATUS), reader.text("url", "", URL), reader.text("reason", "")
        )
        if upstream.status not in ("", "not-reported", "pending") and not upstream.url and not upstream.reason:
            reader.bad(f"the status {upstream.status!r} needs a url or a reason")
        reader.done()
    edits: dict[str, tuple[Edit, ...]] = {}
    reader = top.sub("edits")
    for distribution, item in reader.pairs(NAME) if reader else ():
        edits[distribution] = _load_edits(root, name, distribution, item, path, problems)
    if reader and not edits:
        reader.bad("the fix has no edits")
    variants: dict[str, tuple[Edit, ...]] = {}
    reader = top.sub("variants", required=False)
    for ref, item in reader.pairs(f"{NAME}@{RELEASE}") if reader else ():
        variants[ref] = _load_edits(root, name, ref, item, path, problems)
    proof = Proof("", {})
    reader = top.sub("proof")
    if reader:
        stock_reader = reader.sub("stock")
        stock: dict[str, str] = {}
        for test, expected in stock_reader.pairs(r"test_[a-z0-9_]+") if stock_reader else ():
            if isinstance(expected.data, str) and expected.data.strip():
                stock[test] = expected.data
                wrong = _not_an_expression(expected.data)
                if wrong and stock_reader:
                    stock_reader.bad(f"{test!r} is not a regular expression: {wrong}", expected.line)
            elif stock_reader:
                stock_reader.bad(f"{test!r} must be a regular expression for its failure on stock", expected.line)
        if stock_reader and not stock:
            stock_reader.bad("no test is declared to fail on stock, so nothing is proven")
        proof = Proof(reader.text("test", pattern=PROOF_TEST), stock)
        reader.done()
    revision = top.integer("revision", least=1)
    fix = Fix(
        name,
        revision,
        top.text("title"),
        top.text("symptom"),
        top.text("cause"),
        origin,
        upstream,
        top.text("retires-when"),
        top.text("limits", ""),
        top.texts("requires", pattern=NAME),
        edits,
        variants,
        proof,
        path,
        _load_history(top, revision),
        _load_upstream_has(top),
        _load_requires_with(top),
    )
    top.done()
    return fix if len(problems) == before else None


def _load_requires_with(top: Reader) -> dict[str, tuple[str, ...]]:
    reader = top.sub("requires-with", required=False)
    found: dict[str, tuple[str, ...]] = {}
    for distribution, item in reader.pairs(NAME) if reader else ():
        if reader:
            found[distribution] = reader.texts(distribution, required=True, pattern=NAME)
            if item.data == []:
                reader.bad(f"{distribution!r} must name at least one fix", item.line)
    return found


def _load_upstream_has(top: Reader) -> dict[str, UpstreamHas]:
    found: dict[str, UpstreamHas] = {}
    reader = top.sub("upstream-has", required=False)
    for ref, item in reader.pairs(f"{NAME}@{RELEASE}") if reader else ():
        inner = Reader(item, top.file, top.problems, f"upstream-has of {ref}", top.fix)
        found[ref] = UpstreamHas(
            inner.text("url", "", URL),
            inner.text("reason"),
            inner.text("anchor", pattern=NAME),
            inner.texts("green", pattern=r"test_[a-z0-9_]+"),
            f"{top.file}:{item.line}",
        )
        inner.done()
    return found


def _not_an_expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        return str(error)
    return ""


def _load_edits(root: str, fix: str, key: str, value: Value, path: str, problems: list[Problem]) -> tuple[Edit, ...]:
    if not isinstance(value.data, list) or not value.data:
        problems.append(
            Problem("registry_invalid", f"{key!r} must be a list of at least one edit", fix, path, value.line)
        )
        return ()
    edits: list[Edit] = []
    for index, item in enumerate(value.data, 1):
        reader = Reader(item, path, problems, f"edit {index} of {key}", fix)
        op = reader.text("op", oneof=OPS)
        anchor = file_path = code = payload = ""
        if op == "add-file":
            file_path = reader.text("path", pattern=PATH)
        elif op:
            anchor = reader.text("anchor", pattern=NAME)
        if op and op != "delete":
            code = reader.text("code", pattern=CODE)
            if code:
                payload = read_payload(root, fix, code, reader)
        form = reader.text("upstream-form", "").removesuffix("\n") if op != "add-file" else ""
        _check_lines(reader, "upstream-form", form)
        reader.done()
        edits.append(Edit(op, anchor, file_path, code, payload, f"{path}:{reader.line}", form))
    return tuple(edits)


def _load_history(top: Reader, revision: int) -> tuple[Revision, ...]:
    found: list[Revision] = []
    for item in top.items("history"):
        reader = Reader(item, top.file, top.problems, "an older revision", top.fix)
        number = reader.integer("revision", least=1)
        if revision and number >= revision:
            reader.bad(f"revision {number} is not older than the fix's own, {revision}", reader.line_of("revision"))
        if any(each.number == number for each in found):
            reader.bad(f"revision {number} is there twice", reader.line_of("revision"))
        edits: dict[str, tuple[PastEdit, ...]] = {}
        edits_reader = reader.sub("edits")
        for key, value in edits_reader.pairs(f"{NAME}(@{RELEASE})?") if edits_reader else ():
            edits[key] = _load_past_edits(key, value, reader)
        if edits_reader and not edits:
            edits_reader.bad("an older revision without edits cannot be recognised")
        found.append(Revision(number, reader.text("reason"), edits))
        reader.done()
    return tuple(found)


def _load_past_edits(key: str, value: Value, parent: Reader) -> tuple[PastEdit, ...]:
    if not isinstance(value.data, list) or not value.data:
        parent.bad(f"{key!r} must be a list of at least one edit", value.line)
        return ()
    edits = []
    for index, item in enumerate(value.data, 1):
        reader = Reader(item, parent.file, parent.problems, f"edit {index} of {key}", parent.fix)
        op = reader.text("op", oneof=OPS)
        anchor = path = sha256 = ""
        if op == "add-file":
            path = reader.text("path", pattern=PATH)
        elif op:
            anchor = reader.text("anchor", pattern=NAME)
        if op and op != "delete":
            sha256 = reader.text("sha256", pattern=SHA256)
        reader.done()
        edits.append(PastEdit(op, anchor, path, sha256))
    return tuple(edits)


def _check_payload_folders(registry: Registry, problems: list[Problem]) -> None:
    """Every payload belongs to an edit: an orphan would look as if it were applied."""
    root = registry.root
    used: dict[str, set[str]] = {}
    for fix in registry.fixes.values():
        for edits in (*fix.edits.values(), *fix.variants.values()):
            used.setdefault(fix.id, set()).update(edit.code for edit in edits if edit.code)
    for folder in _folder(root, "patches", problems, folders=True):
        if folder not in registry.fixes:
            if os.path.exists(os.path.join(root, "fixes", folder + ".yaml")):
                continue  # that fix could not be read; its own problem is reported
            problems.append(Problem("orphan_payload", f"patches/{folder}/ belongs to no fix", file=f"patches/{folder}"))
            continue
        for name in _folder(root, f"patches/{folder}", problems):
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


# -- profiles ---------------------------------------------------------------------------------------------------------


def _load_profile(root: str, name: str, problems: list[Problem]) -> Profile | None:
    path = f"profiles/{name}.yaml"
    value = _read(root, path, problems)
    if value is None:
        return None
    before = len(problems)
    top = Reader(value, path, problems, "the profile")
    _same(top, "profile", name, RELEASE, "the file's name")
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


# -- rules for the serve command --------------------------------------------------------------------------------------


def _load_launch(root: str, problems: list[Problem]) -> dict[str, RuleFile]:
    """Every file of ``launch/``, a folder that a registry need not have."""
    found: dict[str, RuleFile] = {}
    if not os.path.lexists(os.path.join(root, LAUNCH)):
        return found
    from fixpack import launch_rules  # most runs that read YAML need no rules

    for name in _yaml_files(root, LAUNCH, problems):
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
