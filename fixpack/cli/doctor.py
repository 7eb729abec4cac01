"""``fixpack doctor``: what would make an apply fail later."""

from __future__ import annotations

import argparse
import json

from fixpack.cli import target_options

HELP = "what would make an apply fail later"


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of doctor."""
    parser.epilog = (
        "exit codes: 0 nothing that stops an apply; 1 a problem. Looked at are the profile's own fixes, and opt-in "
        "fixes that are in place."
    )
    target_options.add(parser, profile="the profile (default: the one whose pinned files are there)")
    parser.add_argument("--json", action="store_true", help="report as JSON on stdout")


def run(args: argparse.Namespace) -> int:
    """Examine and print; returns 0 if there is no problem."""
    from fixpack.doctor import examine
    from fixpack.index import restore
    from fixpack.survey import survey
    from fixpack.text import plural

    root = target_options.registry_root(args)
    locked, target = target_options.open_locked(args, root, check=False)
    findings = examine(root, locked, target, survey(restore(root, locked), locked, target))
    problems = sum(each.level == "problem" for each in findings)
    code = 1 if problems else 0
    if args.json:
        rows = [each._asdict() for each in findings]
        print(json.dumps({"schema_version": 1, "exit_code": code, "findings": rows}, indent=1))
        return code
    for each in findings:
        print(f"{each.level:<7}  {each.message} [{each.code}]")
        if each.hint:
            print(f"         next: {each.hint}" if each.level == "problem" else f"         {each.hint}")
    print(f"{locked['profile']}: {plural(problems, 'problem')}")
    return code
