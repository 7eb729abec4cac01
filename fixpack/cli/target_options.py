"""The options that say which profile and which target, for every verb that looks at an install."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fixpack.lock import Lock
    from fixpack.target import Target


def add(parser: argparse.ArgumentParser, *, profile: str) -> None:
    """Profile, registry and target options.

    :param profile: the help text of ``--profile``.
    """
    parser.add_argument("--profile", metavar="P", help=profile)
    where = parser.add_argument_group("what to look at (default: what the running Python would import)")
    where.add_argument("--site", metavar="DIR", help="a folder that holds the packages and their dist-info")
    where.add_argument("--root", metavar="DIR", help="an image's unpacked root")
    where.add_argument("--source", metavar="NAME=DIR", action="append", default=[], help="a source tree; repeatable")
    parser.add_argument("--registry", metavar="DIR", help="use this registry (default: the one beside the engine)")


def formatter(prog: str) -> argparse.HelpFormatter:
    """Argparse makes one per option, and without a width each asks shutil, whose import costs a confirm 5 %."""
    columns = os.environ.get("COLUMNS", "")
    return argparse.RawDescriptionHelpFormatter(prog, width=int(columns) if columns.isdigit() else 100)


def registry_root(args: argparse.Namespace) -> str:
    """The registry's folder: the named one, or the one beside this engine.

    :raises UsageError: if there is none, or an option is empty.
    """
    for option in ("registry", "site", "root"):
        if getattr(args, option, None) == "":
            from fixpack.errors import Problem, UsageError

            raise UsageError(Problem("bad_usage", f"--{option} is empty", hint="is a variable not set?"))
    if args.registry:
        return str(args.registry)
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if os.path.isdir(os.path.join(here, "profiles")) and os.path.isdir(os.path.join(here, "fixes")):
        return here
    from fixpack.registry import default_root

    return default_root()


def open_locked(args: argparse.Namespace, root: str, *, check: bool = True) -> tuple[Lock, Target]:
    """The lock of the named profile, checked against the registry, and the target.

    Without ``--profile``, the one profile whose pinned bytes are in the target.

    :param check: False leaves the check of the registry to the caller.

    :raises UsageError: for unknown names, and if several profiles fit.
    :raises RegistryError: if the registry is not what the lock was made from.
    """
    from fixpack import lock
    from fixpack.errors import RegistryError

    if args.profile:
        locked = lock.find(root, args.profile)
        target = open_target(args, locked)
    else:
        from fixpack.detect import detect

        locked, target = detect(root, lambda candidate: open_target(args, candidate))
    stale = lock.stale(root, locked) if check else []
    if stale:
        raise RegistryError(*stale)
    return locked, target


def open_target(args: argparse.Namespace, locked: Lock) -> Target:
    """The target that the options name.

    :raises UsageError: if they exclude each other or name what is not there.
    """
    from fixpack import target
    from fixpack.errors import Problem, UsageError

    names = [(distribution, release["package"]) for distribution, release in locked["releases"].items()]
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
