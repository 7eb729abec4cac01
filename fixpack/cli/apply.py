"""``fixpack apply``, and ``apply_all.py``, which is the same."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from fixpack.cli import target_options
from fixpack.cli.target_options import formatter as formatter

if TYPE_CHECKING:
    from fixpack.lock import Lock
    from fixpack.outcome import Outcome
    from fixpack.target import Target

HELP = "bring a profile's fixes in, all or nothing"

EPILOG = """exit codes: 0 applied or confirmed; 1 the target does not match, nothing was changed;
2 usage or invalid registry; 3 internal error; 130 interrupted"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of apply."""
    parser.epilog = EPILOG
    parser.formatter_class = formatter
    parser.add_argument("fixes", nargs="*", metavar="FIX", help="opt-in fixes to add to the profile's own")
    target_options.add(parser, profile="the profile, by name or alias")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--check", action="store_true", help="only verify: exit 1 unless every fix is in place")
    how.add_argument("--dry-run", action="store_true", help="compute and check everything, write nothing")
    how.add_argument("--list", action="store_true", help="list profiles with releases and fixes, or only --profile")
    parser.add_argument("--strict", action="store_true", help="exit 1 if another layer changed a fixed file at all")
    parser.add_argument("--update-record", action="store_true", help="rewrite RECORD's rows of changed files too")
    parser.add_argument("--json", action="store_true", help="report as JSON on stdout")


def run(args: argparse.Namespace) -> int:
    """Apply, check, dry-run or list; returns the exit code."""
    from fixpack.errors import Problem, UsageError

    root = target_options.registry_root(args)
    if args.list and args.fixes:
        raise UsageError(Problem("bad_usage", f"--list takes no FIX, but {args.fixes[0]!r} is one"))
    if args.list:
        from fixpack.cli.list_ import show

        return show(root, args.profile, args.json)
    if not args.profile:
        raise UsageError(Problem("no_profile", "--profile is required", hint="see them with --list"))
    from fixpack import lock

    locked = lock.find(root, args.profile)
    target = target_options.open_target(args, locked)
    return bring_in(args, root, locked, target, write=not (args.check or args.dry_run))


def bring_in(args: argparse.Namespace, root: str, locked: Lock, target: Target, *, write: bool) -> int:
    """Confirm, or else apply or check, and report; returns the exit code."""
    from fixpack import confirm, lock
    from fixpack.errors import RegistryError

    selection = confirm.select(locked, args.fixes)
    stale = lock.stale(root, locked)
    if stale:
        raise RegistryError(*stale)
    outcome = confirm.confirm(locked, selection, target, args.update_record)
    if outcome is None:
        from fixpack.engine import apply

        outcome = apply(root, locked, selection, target, write=write, update_record=args.update_record)
        if args.check and outcome.action == "would-apply":
            outcome = outcome._replace(action="not-applied")
    if outcome.foreign and args.strict:
        from fixpack.layers import refuse

        refuse(outcome)
    _print(outcome, args.json)
    return outcome.exit_code


def _print(outcome: Outcome, as_json: bool) -> None:
    from fixpack import outcome as report

    if as_json:
        print(json.dumps(report.as_json(outcome), indent=1))
        print(report.as_text(outcome), file=sys.stderr)
    else:
        print(report.as_text(outcome))
