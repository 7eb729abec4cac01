"""``fixpack sbom``: a CycloneDX document of the fixed distributions and the patches in them."""

from __future__ import annotations

import argparse
import sys

from fixpack.cli import target_options

HELP = "a CycloneDX document of what was fixed"


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of sbom."""
    target_options.add(parser, profile="the profile (default: the one whose pinned files are there)")
    parser.add_argument("--output", metavar="FILE", help="write it there (default: stdout)")


def run(args: argparse.Namespace) -> int:
    """Print or write the document; returns 0."""
    from fixpack.claim import settle
    from fixpack.errors import Problem, UsageError
    from fixpack.registry import load
    from fixpack.survey import survey

    try:
        from fixpack.sbom import document
    except ModuleNotFoundError as error:
        hint = "pip install cyclonedx-python-lib (the extra `sbom`)"
        raise UsageError(Problem("missing_library", f"sbom needs {error.name}", hint=hint)) from error
    root = target_options.registry_root(args)
    locked, target = target_options.open_locked(args, root)
    settle(target, locked)
    registry = load(root)
    text = document(registry, locked, target, survey(registry, locked, target)) + "\n"
    if args.output:
        with open(args.output, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
    else:
        sys.stdout.write(text)
    return 0
