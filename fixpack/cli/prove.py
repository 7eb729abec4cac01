"""``fixpack prove``: the only way a fix is called proven."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from datetime import datetime, timezone
from typing import TextIO

from fixpack import registry as registry_module
from fixpack.prove import ProfileResult, RunResult, prove_profile
from fixpack.prove_lab import real_lab, select
from fixpack.prove_report import HEADINGS, counts, last_line, plain_table, reasons, record, row, run_line, title

HELP = "run the regression tests of fixes on stock and on fixed upstream code"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("fixes", nargs="*", metavar="FIX", help="only these fixes (default: all of the profile)")
    parser.add_argument("--registry", metavar="DIR", help="use this registry, and the harness beside it")
    parser.add_argument("--profile", metavar="P", help="the profile (default: each that is not experimental)")
    parser.add_argument("--release", metavar="DIST@REL", default="", help="the profiles that pin this release")
    parser.add_argument("--json", metavar="FILE", help="write the full record there; - is standard output")
    jobs = min(2, os.cpu_count() or 1)
    parser.add_argument("--jobs", type=int, metavar="N", default=jobs, help="interpreters at a time (%(default)s)")
    parser.add_argument(
        "--timeout", type=float, metavar="S", default=1800, help="seconds for one interpreter (default %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Prove, print, record; 1 if any fix failed."""
    registry = registry_module.load(args.registry or registry_module.default_root())
    profile = registry_module.find_profile(registry, args.profile) if args.profile else None
    chosen = select(registry, args.fixes, profile, args.release)
    lab = real_lab(registry)
    out = sys.stderr if args.json == "-" else sys.stdout
    started, clock = datetime.now(timezone.utc).isoformat(timespec="seconds"), time.monotonic()
    results = []

    def progress(result: RunResult) -> None:
        print(f"  {run_line(result)}", file=sys.stderr, flush=True)

    for found, wanted in chosen:
        result = prove_profile(registry, found, wanted, lab, args.jobs, args.timeout, progress)
        results.append(result)
        print(title(registry, result), file=out)
        _print_table(result, out)
        for line in reasons(result):
            print(line, file=out)
    if args.json:
        text = json.dumps(record(registry, results, started, time.monotonic() - clock), indent=2) + "\n"
        if args.json == "-":
            sys.stdout.write(text)
        else:
            with open(args.json, "w", encoding="utf-8") as handle:
                handle.write(text)
    print(last_line(results), file=out)
    return 1 if counts(results)["failed"] else 0


def _print_table(result: ProfileResult, out: TextIO) -> None:
    rows = [row(verdict) for verdict in result.verdicts]
    if not out.isatty():
        print(plain_table(rows), file=out)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*HEADINGS)
    colours = {"proven": "green", "failed": "red", "skipped": "yellow"}
    for cells in rows:
        table.add_row(*cells[:-1], f"[{colours[cells[-1]]}]{cells[-1]}[/]")
    Console(file=out).print(table)
