"""The entry of ``apply_all.py``: ``fixpack apply`` without the other verbs."""

from __future__ import annotations

import argparse

from fixpack.cli import apply, guard


def main(argv: list[str] | None = None) -> int:
    """Parse and apply; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="apply_all.py", description=apply.HELP, allow_abbrev=False, formatter_class=apply.formatter
    )
    apply.configure(parser)
    return guard(apply.run, parser.parse_intermixed_args(argv))  # a FIX may stand anywhere
