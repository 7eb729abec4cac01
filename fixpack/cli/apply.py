"""``fixpack apply``, and ``apply_all.py``, which is the same."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    parser.add_argument("--profile", metavar="P", help="the profile, by name or alias")
    where = parser.add_argument_group("what to fix (default: what the running Python would import)")
    where.add_argument("--site", metavar="DIR", help="a folder that holds the packages and their dist-info")
    where.add_argument("--root", metavar="DIR", help="an image's unpacked root")
    where.add_argument("--source", metavar="NAME=DIR", action="append", default=[], help="a source tree; repeatable")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--check", action="store_true", help="only verify: exit 1 unless every fix is in place")
    how.add_argument("--dry-run", action="store_true", help="compute and check everything, write nothing")
    how.add_argument("--list", action="store_true", help="list the profiles, or the fixes of --profile")
    parser.add_argument("--json", action="store_true", help="report as JSON on stdout")
    parser.add_argument("--registry", metavar="DIR", help="use this registry (default: the one beside the engine)")


def formatter(prog: str) -> argparse.HelpFormatter:
    """Argparse makes one per option, and without a width each asks shutil, whose import costs a confirm 5 %."""
    columns = os.environ.get("COLUMNS", "")
    return argparse.RawDescriptionHelpFormatter(prog, width=int(columns) if columns.isdigit() else 100)


def run(args: argparse.Namespace) -> int:
    """Apply, check, dry-run or list; returns the exit code."""
    from fixpack.errors import Problem, RegistryError, UsageError

    for option in ("registry", "site", "root"):
        if getattr(args, option) == "":
            raise UsageError(Problem("bad_usage", f"--{option} is empty", hint="is a variable not set?"))
    root = args.registry or _default_root()
    if args.list and args.fixes:
        raise UsageError(Problem("bad_usage", f"--list takes no FIX, but {args.fixes[0]!r} is one"))
    if args.list:
        from fixpack.cli.list_ import show

        return show(root, args.profile, args.json)
    if not args.profile:
        raise UsageError(Problem("no_profile", "--profile is required", hint="see them with --list"))
    from fixpack import confirm, lock

    locked = lock.find(root, args.profile)
    selection = confirm.select(locked, args.fixes)
    names = [(distribution, release["package"]) for distribution, release in locked["releases"].items()]
    target = _target(args, names)
    stale = lock.stale(root, locked)
    if stale:
        raise RegistryError(*stale)
    outcome = confirm.confirm(locked, selection, target)
    if outcome is None:
        from fixpack.engine import apply

        outcome = apply(root, locked, selection, target, write=not (args.check or args.dry_run))
        if args.check and outcome.action == "would-apply":
            outcome = outcome._replace(action="not-applied")
    _print(outcome, args.json)
    return outcome.exit_code


def _default_root() -> str:
    # the registry beside this engine; registry.default_root says what is wrong when there is none
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if os.path.isdir(os.path.join(here, "profiles")) and os.path.isdir(os.path.join(here, "fixes")):
        return here
    from fixpack.registry import default_root

    return default_root()


def _target(args: argparse.Namespace, names: list[tuple[str, str]]) -> Target:
    from fixpack import target
    from fixpack.errors import Problem, UsageError

    given = [option for option in ("site", "root", "source") if getattr(args, option)]
    if len(given) > 1:
        message = f"--{given[0]} and --{given[1]} exclude each other"
        raise UsageError(Problem("bad_usage", message))
    if args.site:
        return target.site_target(args.site, names)
    if args.root:
        return target.root_target(args.root, names)
    if args.source:
        folders = {}
        for item in args.source:
            name, sign, folder = item.partition("=")
            if not sign or not folder or name in folders:
                raise UsageError(Problem("bad_usage", f"--source needs NAME=DIR, each name once, not {item!r}"))
            folders[name] = folder
        return target.source_target(folders, names)
    return target.interpreter_target(names)


def _print(outcome: Outcome, as_json: bool) -> None:
    from fixpack import outcome as report

    if as_json:
        print(json.dumps(report.as_json(outcome), indent=1))
        print(report.as_text(outcome), file=sys.stderr)
    else:
        print(report.as_text(outcome))
