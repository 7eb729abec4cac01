"""``fixpack diff``: what fixes change in a target, as it has them or would get them."""

from __future__ import annotations

import argparse
import json
import sys

from fixpack.cli import target_options

HELP = "what fixes change in an install, as it has them or would get them"


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of diff."""
    parser.add_argument(
        "fixes", nargs="*", metavar="FIX", help="only these (default: those in place, or the profile's)"
    )
    target_options.add(parser, profile="the profile (default: the one whose pinned files are there)")
    parser.add_argument("--json", action="store_true", help="report as JSON on stdout")


def run(args: argparse.Namespace) -> int:
    """Print the diffs; returns 0."""
    from fixpack.claim import settle
    from fixpack.difference import differences
    from fixpack.errors import UsageError
    from fixpack.registry import load, unknown

    root = target_options.registry_root(args)
    locked, target = target_options.open_locked(args, root)
    bad = [unknown("fix", name, locked["fixes"]) for name in args.fixes if name not in locked["fixes"]]
    if bad:
        raise UsageError(*bad)
    settle(target, locked)
    found = differences(load(root), locked, args.fixes, target)
    if args.json:
        body = {"schema_version": 1, "profile": locked["profile"], "files": [each._asdict() for each in found]}
        print(json.dumps(body, indent=1))
        return 0
    for each in found:
        sys.stdout.buffer.write(each.text.encode("utf-8", "surrogateescape"))
        sys.stdout.flush()
        print(f"{each.path}: {'in place' if each.in_place else 'would be written by apply'}", file=sys.stderr)
    return 0
