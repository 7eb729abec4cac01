"""``fixpack revert``: take fixes out, back to the base bytes, all or nothing."""

from __future__ import annotations

import argparse
import json

from fixpack.cli import target_options

HELP = "take fixes out again, back to the pinned bytes, all or nothing"


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of revert."""
    parser.epilog = (
        "exit codes: 0 taken out, or nothing was in place; 1 a file holds what would be lost; nothing changed"
    )
    parser.add_argument("fixes", nargs="*", metavar="FIX", help="only these (default: all that are in place)")
    target_options.add(parser, profile="the profile (default: the one whose pinned files are there)")
    parser.add_argument("--dry-run", action="store_true", help="compute and check everything, write nothing")
    parser.add_argument("--json", action="store_true", help="report as JSON on stdout")


def run(args: argparse.Namespace) -> int:
    """Revert; returns the exit code."""
    from fixpack.registry import load
    from fixpack.revert import revert

    root = target_options.registry_root(args)
    locked, target = target_options.open_locked(args, root)
    done = revert(load(root), locked, args.fixes, target, write=not args.dry_run)
    action = "reverted" if done.written else "would-revert" if done.files else "nothing-in-place"
    if args.json:
        body = {"schema_version": 1, "exit_code": 0, "action": action, **done._asdict()}
        print(json.dumps(body, indent=1))
        return 0
    for note in done.notes:
        print(f"note: {note}")
    for real, what in done.files:
        print(f"  {what:<9}  {real}")
    said = {
        "reverted": "taken out",
        "would-revert": "would be taken out",
        "nothing-in-place": "in place, nothing to do",
    }
    print(f"{done.profile}: {', '.join(done.out) or 'no fix'} {said[action]}")
    if done.stay:
        print(f"  still in place: {', '.join(done.stay)}")
    return 0
