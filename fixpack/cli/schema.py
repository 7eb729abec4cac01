"""``fixpack schema``: the JSON Schemas of the registry's YAML files and of receipts."""

from __future__ import annotations

import argparse
import os
import sys

HELP = "print the JSON Schema of a kind of file"

KINDS = ("fix", "anchors", "profile", "launch", "receipt")


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of schema."""
    parser.add_argument("kind", choices=KINDS, help="which file kind")


def run(args: argparse.Namespace) -> int:
    """Print one schema."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with open(os.path.join(package, "schemas", f"{args.kind}.schema.json"), encoding="utf-8") as file:
        sys.stdout.write(file.read())
    return 0
