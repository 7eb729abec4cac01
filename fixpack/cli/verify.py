"""``fixpack verify``: is every fix in place?  For CI, a readiness probe or a start line; it writes nothing."""

from __future__ import annotations

import argparse

from fixpack.cli import target_options

HELP = "exit 0 only if every fix of a profile is in place; writes nothing"


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of verify."""
    parser.epilog = "exit codes: 0 every fix is in place; 1 not so; 2 usage or invalid registry"
    parser.add_argument("fixes", nargs="*", metavar="FIX", help="opt-in fixes that must be in place too")
    target_options.add(parser, profile="the profile (default: the one whose pinned files are there)")
    parser.add_argument("--strict", action="store_true", help="exit 1 if another layer changed a fixed file at all")
    parser.add_argument("--json", action="store_true", help="report as JSON on stdout")


def run(args: argparse.Namespace) -> int:
    """Confirm; returns the exit code."""
    from fixpack.cli.apply import bring_in

    args.check, args.update_record = True, False
    root = target_options.registry_root(args)
    locked, target = target_options.open_locked(args, root, check=False)
    return bring_in(args, root, locked, target, write=False)
