"""``fixpack lint``: the registry's files, their locks, and every pin against the cached sources."""

from __future__ import annotations

import argparse

HELP = "check the registry, and every pin against the cached sources"


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of lint."""
    parser.add_argument("--registry", metavar="DIR", help="use this registry")
    parser.add_argument("--json", action="store_true", help="report as JSON on stdout")


def run(args: argparse.Namespace) -> int:
    """Check everything; returns 0 if nothing was found."""
    from fixpack import lint, registry
    from fixpack.errors import RegistryError
    from fixpack.text import plural

    loaded = registry.load(args.registry or registry.default_root())
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
