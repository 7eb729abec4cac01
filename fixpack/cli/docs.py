"""``fixpack docs``: write the pages that are made from the registry, check them, or build the site."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from fixpack.docs_facts import Facts
from fixpack.errors import Problem

HELP = "write docs/ from the registry"


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of docs."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if a page is stale or orphaned, or a link is dead"
    )
    what.add_argument(
        "--html",
        metavar="DIR",
        help="build the site there instead, with whole diffs of the releases that are in the source cache",
    )
    parser.add_argument("--registry", metavar="DIR", help="use this registry; the pages go to docs/ in it")


def run(args: argparse.Namespace) -> int:
    """Write what changed and remove what is orphaned; returns 0, or 1 if ``--check`` found something."""
    from fixpack import docs, docs_facts, registry
    from fixpack.errors import FixpackError, UsageError
    from fixpack.text import plural

    loaded = registry.load(args.registry or registry.default_root())
    folder = os.path.join(loaded.root, "docs")
    if not os.path.isdir(folder):
        message = "the pages need a checkout of fixpack: this registry has no folder docs/"
        raise UsageError(Problem("docs_missing", message, file=loaded.root, hint="name one with --registry DIR"))
    facts = docs_facts.read_facts(loaded)
    if args.html:
        return _site(facts, args.html)
    made = docs.pages(facts)
    found = docs.survey(folder, made)
    if found.foreign:
        hint = "move it elsewhere: docs/fixes, docs/profiles and a few pages beside them are made by this program"
        message = "not a page that this program made"
        raise FixpackError(*(Problem("page_foreign", message, file=f"docs/{p}", hint=hint) for p in found.foreign))
    dead = _dead_links(loaded.root, made) if args.check else []
    if not args.check:
        for path in found.stale:
            _write(os.path.join(folder, path), made[path])
        for path in found.orphans:
            os.unlink(os.path.join(folder, path))
    old, gone = ("stale", "orphaned") if args.check else ("written", "removed")
    lines = [f"docs/{path}: {old}" for path in found.stale] + [f"docs/{path}: {gone}" for path in found.orphans]
    lines += [f"{each.file}:{each.line}: dead link: {each.message}" for each in dead]
    links = f", {plural(len(dead), 'dead link')}" if args.check else ""
    lines.append(f"{plural(len(made), 'page')}: {len(found.stale)} {old}, {len(found.orphans)} {gone}{links}")
    print("\n".join(lines))
    return 1 if args.check and (found.stale or found.orphans or dead) else 0


def _dead_links(root: str, made: Mapping[str, str]) -> list[Problem]:
    """The dead links of all documents of a checkout, with the pages as they should be."""
    from fixpack.site.links import dead_links, documents

    pages = {**documents(root), **{f"docs/{path}": text for path, text in made.items()}}
    return dead_links(pages, lambda path: os.path.exists(os.path.join(root, path)))


def _site(facts: Facts, folder: str) -> int:
    """Build the site; returns 0."""
    from fixpack.site import build
    from fixpack.site.diffs import diffs
    from fixpack.text import plural

    found, absent = diffs(facts.registry)
    files = build.build(facts._replace(diffs=found, without=absent))
    build.write(files, folder)
    for ref in absent:
        print(f"{ref} is not in the source cache: its diffs are short (fixpack sources fetch {ref})")
    print(f"{plural(len(files), 'file')} in {folder}; open {os.path.join(folder, 'index.html')}")
    return 0


def _write(path: str, text: str) -> None:
    from fixpack.durable import replace

    os.makedirs(os.path.dirname(path), exist_ok=True)
    replace(path, text.encode(), lasting=False)
