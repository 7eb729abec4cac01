"""``fixpack sources``: the cache of pinned upstream sources."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fixpack import cache, registry, sources
from fixpack.errors import Problem, SourceError
from fixpack.model import Release
from fixpack.text import plural, short

HELP = "fetch, list, find and verify the pinned upstream sources"
SCHEMA_VERSION = 1


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the sub-verbs."""
    verbs = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    fetch = verbs.add_parser(
        "fetch",
        help="bring pinned releases into the cache",
        description="Bring pinned releases into the cache. Without --from: from the machine's package index where "
        "the release pins a source archive, else from the git address that its anchors file names.",
    )
    fetch.add_argument(
        "names",
        nargs="+",
        metavar="NAME@RELEASE",
        help="for example vllm-gaudi@v0.26.0; or NAME@COMMIT, all 40 digits, to look at a commit that no release pins",
    )
    fetch.add_argument(
        "--from",
        dest="origin",
        metavar="PATH_OR_URL",
        help="a git clone, mirror, bare folder or address that has the pinned commit, or the source archive",
    )
    listing = verbs.add_parser("list", help="list the pinned releases and what the cache has of them")
    listing.add_argument("--json", action="store_true", help="print JSON")
    path = verbs.add_parser("path", help="print the folder that holds a release's package")
    path.add_argument("name", metavar="NAME@RELEASE")
    verify = verbs.add_parser("verify", help="hash every file in the cache again")
    verify.add_argument("names", nargs="*", metavar="NAME@RELEASE", help="all that the cache has, if none is named")
    for verb in (fetch, listing, path, verify):
        verb.allow_abbrev = False
        verb.add_argument("--registry", metavar="DIR", help="use this registry (default: the one beside the engine)")


def run(args: argparse.Namespace) -> int:
    """Run one sub-verb; out: the exit code.  Raises: FixpackError."""
    pinned = registry.load_releases(args.registry or registry.default_root())
    if args.action == "fetch":
        return _fetch(_releases(pinned, args.names), args.origin)
    if args.action == "list":
        return _list(pinned, args.json)
    if args.action == "path":
        print(sources.tree(sources.find(pinned, args.name)))
        return 0
    return _verify(_releases(pinned, args.names) or [r for r in pinned.values() if sources.have(r)])


def _releases(pinned: Mapping[str, Release], names: Sequence[str]) -> list[Release]:
    """The named releases, each once, in the order given."""
    found = [sources.find(pinned, name) for name in names]
    return list({release.ref: release for release in found}.values())


def _fetch(releases: Sequence[Release], origin: str | None) -> int:
    """Fetch each release, also when one fails; all problems at the end."""
    problems: list[Problem] = []
    for release in releases:
        try:
            done = sources.obtain(release, origin)
        except SourceError as error:
            problems += error.problems
            continue
        print(f"{release.ref}: {done.action}, {_origin(release, done.record)}\n  {done.path}")
    if problems:
        raise SourceError(*problems)
    return 0


def _origin(release: Release, record: cache.Record) -> str:
    """What a tree was made of, in words."""
    if record.kind == "sdist":
        return f"archive sha256 {short(record.sdist_sha256)} from {record.origin}"
    also = (
        ""
        if record.commit.startswith(release.commit)
        else f" (stands in for {release.commit[:12]}: the touched files agree)"
    )
    return f"commit {record.commit[:12]}{also} from {record.origin}"


class Row(NamedTuple):
    """A line of the list."""

    release: str
    state: str  # "cached", "absent", "unreadable"; "by commit", or "unpinned": a tree that no release names any more
    commit: str  # what the tree was made of or, where there is none, what the release pins
    sdist_sha256: str
    path: str


def _rows(pinned: Mapping[str, Release]) -> list[Row]:
    """One row per pinned release, and one per tree that no release pins any more."""
    rows = []
    for release in sorted(pinned.values(), key=lambda release: release.ref):
        path = cache.tree_dir(release)
        record = cache.read_record(path) if sources.have(release) else None
        state = "cached" if record else "unreadable" if os.path.isdir(path) else "absent"
        commit, sha256 = release.commit, release.sdist.sha256 if release.sdist else ""
        if record:
            commit, sha256 = record.commit, record.sdist_sha256
        rows.append(Row(release.ref, state, commit, sha256, path if record else ""))
    folder = os.path.join(cache.cache_dir(), "trees")
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if name not in pinned:
            path = os.path.join(folder, name)
            made = cache.read_record(path)
            by_commit = made is not None and made.commit == name.partition("@")[2]
            state, commit = ("by commit", name.partition("@")[2]) if by_commit else ("unpinned", "")
            rows.append(Row(name, state, commit, "", path))
    return rows


def _pin(row: Row) -> str:
    """What a row's tree is pinned by, in a few characters."""
    if row.sdist_sha256:
        return f"sdist {short(row.sdist_sha256)}"
    return f"commit {short(row.commit)}" if row.commit else ""


def _list(pinned: Mapping[str, Release], as_json: bool) -> int:
    """Print the rows, and how to get what is absent."""
    rows = _rows(pinned)
    if as_json:
        document = {
            "schema_version": SCHEMA_VERSION,
            "cache": cache.cache_dir(),
            "sources": [r._asdict() for r in rows],
        }
        json.dump(document, sys.stdout, indent=2)
        print()
        return 0
    print(f"cache: {cache.cache_dir()}")
    lines = [(row.release, row.state, _pin(row), row.path) for row in rows]
    widths = [max(len(line[column]) for line in lines) if lines else 0 for column in range(3)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, [*widths, 0], strict=True)).rstrip())
    absent = [pinned[row.release] for row in rows if row.state != "cached" and row.release in pinned]
    for release in absent:
        print(f"to get it: {sources.fetch_command(release)}")
    return 0


def _verify(releases: Sequence[Release]) -> int:
    """Hash everything again; all problems of all releases at the end."""
    problems: list[Problem] = []
    for release in releases:
        sources.tree(release)
        found = sources.verify(release)
        print(f"{release.ref}: {plural(len(found), 'problem') if found else 'intact'}")
        problems += found
    if not releases:
        message = "there is nothing to verify: no pinned release is in the cache"
        hint = "fetch one: fixpack sources fetch NAME@RELEASE"
        raise SourceError(Problem("source_missing", message, file=cache.cache_dir(), hint=hint))
    if problems:
        raise SourceError(*problems)
    return 0
