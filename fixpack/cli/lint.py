"""``fixpack lint``: the registry's files, their locks, and every pin against the cached sources."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fixpack.model import Registry

HELP = "check the registry, and every pin against the cached sources"


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of lint."""
    parser.add_argument("--registry", metavar="DIR", help="use this registry")
    parser.add_argument(
        "--against",
        metavar="TREE",
        help="say instead which anchors hold in another tree: NAME@COMMIT or NAME@RELEASE in the source cache, "
        "or NAME=DIR; exit 1 unless all of one release do",
    )
    parser.add_argument("--json", action="store_true", help="report as JSON on stdout")


def _against(loaded: Registry, name: str, as_json: bool) -> int:
    """Print which anchors hold in a tree; returns 0 if all those of one release do."""
    import json

    from fixpack import against

    distribution, tree = against.tree_of(loaded.releases, name)
    found = against.compare(loaded, distribution, tree)
    if as_json:
        told = [{**each._asdict(), "problems": [problem._asdict() for problem in each.problems]} for each in found]
        print(json.dumps({"schema_version": 1, "tree": tree, "releases": told}, indent=1))
    else:
        print(against.as_text(name, tree, found))
    return 1 if found[0].problems else 0


def run(args: argparse.Namespace) -> int:
    """Check everything; returns 0 if nothing was found."""
    from fixpack import lint, registry
    from fixpack.errors import RegistryError
    from fixpack.text import plural

    loaded = registry.load(args.registry or registry.default_root())
    if args.against:
        return _against(loaded, args.against, args.json)
    report = lint.lint(loaded)
    if report.problems:
        raise RegistryError(*report.problems)
    if args.json:
        import json

        print(json.dumps({"schema_version": 1, "problems": [], **report.counts, "skipped": list(report.skipped)}))
    for ref in report.skipped:
        print(f"skipped: {ref} is not in the cache; fetch it with `fixpack sources fetch {ref}`")
    counts = report.counts
    print(
        f"clean: {plural(counts['fixes'], 'fix')}, {plural(counts['profiles'], 'profile')}, "
        f"{plural(counts['releases'], 'release')}, {plural(counts['anchors'], 'anchor')}; "
        f"{plural(counts['checked'], 'release')} checked against cached sources"
    )
    return 0
