"""``fixpack docs``: write the pages that are made from the registry, or check that they are up to date."""

from __future__ import annotations

import argparse
import os

HELP = "write docs/ from the registry"


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of docs."""
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is stale or orphaned")
    parser.add_argument("--registry", metavar="DIR", help="use this registry; the pages go to docs/ in it")


def run(args: argparse.Namespace) -> int:
    """Write what changed and remove what is orphaned; returns 0, or 1 if ``--check`` found such a page."""
    from fixpack import docs, docs_facts, registry
    from fixpack.errors import FixpackError, Problem, UsageError
    from fixpack.text import plural

    loaded = registry.load(args.registry or registry.default_root())
    folder = os.path.join(loaded.root, "docs")
    if not os.path.isdir(folder):
        message = "the pages need a checkout of fixpack: this registry has no folder docs/"
        raise UsageError(Problem("docs_missing", message, file=loaded.root, hint="name one with --registry DIR"))
    made = docs.pages(docs_facts.read_facts(loaded))
    found = docs.survey(folder, made)
    if found.foreign:
        hint = "move it elsewhere: the folders docs/fixes and docs/profiles hold made pages only"
        message = "not a page that this program made"
        raise FixpackError(*(Problem("page_foreign", message, file=f"docs/{p}", hint=hint) for p in found.foreign))
    if not args.check:
        for path in found.stale:
            _write(os.path.join(folder, path), made[path])
        for path in found.orphans:
            os.unlink(os.path.join(folder, path))
    old, gone = ("stale", "orphaned") if args.check else ("written", "removed")
    lines = [f"docs/{path}: {old}" for path in found.stale] + [f"docs/{path}: {gone}" for path in found.orphans]
    lines.append(f"{plural(len(made), 'page')}: {len(found.stale)} {old}, {len(found.orphans)} {gone}")
    print("\n".join(lines))
    return 1 if args.check and (found.stale or found.orphans) else 0


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temp = path + ".tmp"
    with open(temp, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
    os.replace(temp, path)
