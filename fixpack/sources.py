"""Pinned upstream sources: fetch, find and re-hash them.

``fetch`` is the only writer.  A tree appears with one rename, complete and verified, or not at all.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from fixpack import cache, gitcmd, gittree, pkgindex, sdist
from fixpack.cache import Record, cache_dir
from fixpack.errors import Problem, SourceError, UsageError
from fixpack.model import Release
from fixpack.target import read_file
from fixpack.text import did_you_mean

__all__ = ["cache_dir", "fetch", "fetch_command", "find", "have", "obtain", "tree", "verify"]


class Obtained(NamedTuple):
    """What a fetch did."""

    path: str
    action: str  # "fetched", "rebuilt" or "kept"
    record: Record


def find(releases: Mapping[str, Release], name: str) -> Release:
    """The release that ``NAME@RELEASE`` names; a leading v of the release may be left out.

    ``NAME@COMMIT``, with all 40 digits, names that commit of a known distribution, whether or not a release pins it.

    Raises: UsageError.
    """
    distribution, _, release = name.partition("@")
    for spelling in (release, "v" + release, release.removeprefix("v")):
        if found := releases.get(f"{distribution}@{spelling}"):
            return found
    if re.fullmatch("[0-9a-f]{7,40}", release):
        pinned = [each for each in releases.values() if each.distribution == distribution]
        if pinned and len(release) == gittree.FULL:
            return _by_commit(pinned, release)
        if pinned:
            message = f"{name!r} names neither a pinned release nor a whole commit id"
            raise UsageError(Problem("unknown_release", message, hint="give all 40 digits of the commit's id"))
    hint = did_you_mean(name, releases) or f"pinned are: {', '.join(sorted(releases))}"
    what = f"no pinned release {name!r}" if release else f"{name!r} is no NAME@RELEASE"
    raise UsageError(Problem("unknown_release", what, hint=hint))


def _by_commit(pinned: Sequence[Release], commit: str) -> Release:
    """A state of a distribution that no anchors file pins: git proves it by its id, and no file of it is known."""
    address = next((each.git for each in pinned if each.git), "")
    first = pinned[0]
    return Release(first.distribution, commit, "", first.package, commit, (), address, None, {}, "the command line")


def have(release: Release) -> bool:
    """Whether the tree is in the cache (not whether it is intact: see ``verify``)."""
    return os.path.isdir(os.path.join(cache.tree_dir(release), release.package))


def tree(release: Release) -> str:
    """The folder that holds the release's package.  Raises: SourceError with the command to type."""
    if have(release):
        return cache.tree_dir(release)
    raise SourceError(
        Problem(
            "source_missing",
            f"the source of {release.ref} is not in the cache",
            file=cache.tree_dir(release),
            hint=fetch_command(release),
        )
    )


def fetch_command(release: Release) -> str:
    """The line that fetches a release."""
    origin = "" if release.sdist or release.git else " --from PATH_OR_URL"
    return f"fixpack sources fetch {release.ref}{origin}"


def fetch(release: Release, origin: str | None = None) -> str:
    """Have the verified tree of a release in the cache; out: its path.  Raises: SourceError."""
    return obtain(release, origin).path


def obtain(release: Release, origin: str | None = None) -> Obtained:
    """As ``fetch``, and tell what was done.

    In: an origin is a git repository (path or address) or a source archive (path or address); without
    one the package index is asked where the release pins an sdist, else its git address.  A tree that is
    there and intact is kept.
    """
    with cache.tools(), cache.exclusive() as tmp:
        path = cache.tree_dir(release)
        before = have(release)
        if before and not verify(release):
            record = cache.read_record(path)
            assert record is not None  # verify says so
            return Obtained(path, "kept", record)
        made = os.path.join(tmp, "tree")
        os.mkdir(made)
        record = _make(release, origin, made, tmp)
        cache.write_record(made, record)
        cache.publish(made, path, tmp)
        return Obtained(path, "rebuilt" if before else "fetched", record)


def _make(release: Release, origin: str | None, made: str, tmp: str) -> Record:
    """Fill a new tree."""
    kind, place = _route(release, origin)
    if kind == "sdist":
        assert release.sdist is not None  # _route says so
        archive = cache.sdist_file(release)
        source = "the cached archive"
        if not sdist.is_pinned(archive, release.sdist):
            config = pkgindex.configuration(os.environ)
            if place:
                sdist.from_address(release, release.sdist, place, archive, config)
                source = gitcmd.hide(place)
            else:
                source = sdist.from_index(release, release.sdist, archive, config)
        files = sdist.unpack(archive, release.package, made)
        return Record("sdist", "", release.sdist.sha256, source, files)
    record = _from_git(release, place, made, tmp)
    if record.commit != release.commit and (problems := list(_pins(release, made))):
        raise SourceError(*problems)
    return record


def _from_git(release: Release, place: str, made: str, tmp: str) -> Record:
    """Fill a new tree from the cached repository; a damaged one is replaced by a fresh one from the origin."""
    repository = cache.git_dir(release)
    cached = os.path.lexists(repository)
    try:
        return _export(repository, release, place, made)
    except SourceError as error:
        if not cached or not any(problem.code in ("git_damaged", "commit_missing") for problem in error.problems):
            raise
        print(f"checking the cached repository {repository}", file=sys.stderr)
        if not (found := gittree.damage(repository)):
            raise
        damaged = Problem("git_damaged", "the cached repository is damaged", file=repository, found=found)
        if not place:
            hint = f"name a clone or mirror to replace it: fixpack sources fetch {release.ref} --from PATH_OR_URL"
            raise SourceError(damaged._replace(hint=hint)) from error
    print(f"it is damaged ({found}); fetching a fresh one from {gitcmd.hide(place)}", file=sys.stderr)
    cache.empty(made)
    fresh = os.path.join(tmp, os.path.basename(repository))
    try:
        record = _export(fresh, release, place, made)
    except SourceError as error:
        raise SourceError(damaged, *error.problems) from error
    cache.publish(fresh, repository, tmp)
    print(f"replaced {repository}", file=sys.stderr)
    return record


def _export(repository: str, release: Release, place: str, made: str) -> Record:
    """Fill a new tree from a repository, which is asked first, and fetched into if it lacks the commit."""
    wanted = gittree.wanted(repository, release)
    commit = next((commit for commit in wanted if not gittree.missing(repository, commit)), "")
    source = "the cached repository" if commit else gitcmd.hide(place)
    commit = commit or gittree.fetch(repository, release, place)
    gittree.export(repository, commit, made)
    return Record("git", commit, "", source, {})


def _route(release: Release, origin: str | None) -> tuple[str, str]:
    """Where to get a release from: ("sdist" or "git", path or address; "" for the package index)."""
    if origin is None:
        if release.sdist:
            return "sdist", ""
        wanted = gittree.wanted(cache.git_dir(release), release)
        if release.git or any(not gittree.missing(cache.git_dir(release), commit) for commit in wanted):
            return "git", release.git
        message = f"no address of {release.ref} is known"
        raise SourceError(Problem("no_origin", message, file=release.where, hint=fetch_command(release)))
    if os.path.exists(origin):
        place = os.path.abspath(origin)
        archive = os.path.isfile(place) and tarfile.is_tarfile(place)
    elif origin.startswith("-") or not ("://" in origin or ":" in origin.partition("/")[0]):
        message = f"{origin}: no such file or folder, and no address"
        raise SourceError(Problem("no_origin", message, hint=f"fixpack sources fetch {release.ref} --from PATH_OR_URL"))
    else:
        place = origin
        archive = urlsplit(origin).path.endswith((".tar.gz", ".tgz"))
    if archive and not release.sdist:
        message = f"{release.ref} pins no source archive, only a git commit"
        hint = f"name a git repository: fixpack sources fetch {release.ref} --from PATH_OR_URL"
        pinned = f"commit {release.commit}"
        raise SourceError(Problem("no_origin", message, file=release.where, expected=pinned, hint=hint))
    return ("sdist" if archive else "git"), place


def verify(release: Release) -> list[Problem]:
    """Hash every file of a release's tree again; out: all that is wrong with it."""
    path = cache.tree_dir(release)
    again = f"fixpack sources fetch {release.ref}"
    record = cache.read_record(path)
    if record is None:
        message = f"{release.ref}: the tree does not say what it was made of"
        return [Problem("source_damaged", message, file=path, hint=again)]
    problems = []
    expected: dict[str, tuple[str, str]] = {}  # path -> kind of id, id
    if record.kind == "sdist":
        pinned = release.sdist.sha256 if release.sdist else "none"
        if record.sdist_sha256 != pinned:
            problems.append(
                Problem("source_damaged", f"{release.ref}: the tree was made of another archive", file=path,
                        expected=f"sha256 {pinned}", found=f"sha256 {record.sdist_sha256}", hint=again)
            )  # fmt: skip
        expected = {name: ("sha256", digest) for name, digest in record.files.items()}
    else:
        pins = (release.commit, *release.also_commits)
        if not any(record.commit.startswith(pin) for pin in pins):
            problems.append(
                Problem("source_damaged", f"{release.ref}: the tree was made of another commit", file=path,
                        expected=f"commit {release.commit}", found=f"commit {record.commit}", hint=again)
            )  # fmt: skip
        try:
            files = gittree.entries(cache.git_dir(release), record.commit)
        except SourceError as error:
            hint = fetch_command(release)
            return [*problems, *(problem._replace(hint=problem.hint or hint) for problem in error.problems)]
        expected = {name: (f"mode {entry.mode}, blob", entry.blob) for name, entry in files.items()}
    problems += [
        Problem("source_damaged", f"{release.ref}: {what}", file=os.path.join(path, name), hint=again)
        for name, what in _differences(path, expected, git=record.kind == "git")
    ]
    return problems + list(_pins(release, path))


def _differences(path: str, expected: dict[str, tuple[str, str]], git: bool) -> Iterable[tuple[str, str]]:
    """Every file that is not as expected, and how."""
    found = set()
    for folder, folders, names in os.walk(path):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in sorted([*names, *links]):
            full = os.path.join(folder, name)
            inner = os.path.relpath(full, path)
            if inner == cache.RECORD:
                continue
            found.add(inner)
            if inner not in expected:
                yield inner, "a file that upstream does not have"
                continue
            kind, wanted = expected[inner]
            read = _read(full)
            if isinstance(read, Problem):
                yield inner, f"changed since it was fetched: expected {kind} {wanted}, but it {read.message}"
                continue
            mode, data = read
            if git:
                now = (f"mode {mode}, blob", gittree.blob_id(data))
            else:
                now = ("sha256" if mode != "120000" else "link", hashlib.sha256(data).hexdigest())
            if now != (kind, wanted):
                yield inner, f"changed since it was fetched: expected {kind} {wanted}, found {now[0]} {now[1]}"
    for inner in sorted(expected.keys() - found):
        yield inner, "the file is gone"


def _read(path: str) -> tuple[str, bytes] | Problem:
    """Git's mode of a file and its content; a link's content is its target."""
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return "120000", os.fsencode(os.readlink(path))
    data = read_file(path)
    if not isinstance(data, bytes):
        return data or Problem("not_a_file", "is gone", file=path)
    return ("100755" if status.st_mode & 0o100 else "100644"), data


def _pins(release: Release, path: str) -> Iterable[Problem]:
    """Every file that the anchors file pins by sha256 and that is not that."""
    for file in release.files.values():
        full = os.path.join(path, file.path)
        data = read_file(full)
        if isinstance(data, bytes):
            found = f"sha256 {hashlib.sha256(data).hexdigest()}"
        else:
            found = f"it {data.message}" if data else "no such file"
        if found != f"sha256 {file.sha256}":
            yield Problem(
                "pin_differs", f"{release.ref}: {file.path} is not what {release.where} pins", file=full,
                expected=f"sha256 {file.sha256}", found=found,
                hint=f"correct the pin in {release.where} if the commit is right",
            )  # fmt: skip
