"""``fixpack prove``: the only way a fix is called proven."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import stat
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TextIO

from fixpack import registry as registry_module
from fixpack.errors import Problem, UsageError
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
    with _open_record(args.json) as handle:
        return _run(args, handle)


def _run(args: argparse.Namespace, handle: TextIO | None) -> int:
    """As ``run``; the record goes to the handle."""
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
    if handle:
        if handle is not sys.stdout and stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
            handle.truncate(0)
        json.dump(record(registry, results, started, time.monotonic() - clock), handle, indent=2)
        handle.write("\n")
        handle.flush()
    print(last_line(results), file=out)
    return 1 if counts(results)["failed"] else 0


@contextlib.contextmanager
def _open_record(path: str | None) -> Iterator[TextIO | None]:
    """The file for the record, open before anything runs; what is in it stays until there is a new record.

    :raises UsageError: if it cannot be written.
    """
    if not path or path == "-":
        yield sys.stdout if path else None
        return
    new = not os.path.lexists(path)
    try:
        handle = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed below
    except OSError as error:
        hint = "name a file in a folder that there is"
        message = f"--json: the record cannot be written: {error.strerror}"
        raise UsageError(Problem("bad_usage", message, file=path, hint=hint)) from error
    with handle:
        try:
            yield handle
        except BaseException:
            if new:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            raise


def _print_table(result: ProfileResult, out: TextIO) -> None:
    rows = [row(verdict) for verdict in result.verdicts]
    if not out.isatty():
        print(plain_table(rows), file=out)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*HEADINGS)
    colours = {"proven": "green", "superseded": "cyan", "failed": "red", "skipped": "yellow"}
    for cells in rows:
        table.add_row(*cells[:-1], f"[{colours[cells[-1]]}]{cells[-1]}[/]")
    Console(file=out).print(table)
