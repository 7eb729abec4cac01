"""``fixpack lock``: regenerate the locks.  Never a side effect of another verb."""

from __future__ import annotations

import argparse
import os

HELP = "regenerate the profiles' locks from the cached sources"


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of lock."""
    parser.add_argument("profiles", nargs="*", metavar="PROFILE", help="only these (default: all)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a lock would change")
    parser.add_argument("--registry", metavar="DIR", help="use this registry")


def run(args: argparse.Namespace) -> int:
    """Write the locks that changed; returns 0, or 1 if ``--check`` found a stale one."""
    from fixpack import lock, locksmith, registry, sources
    from fixpack.durable import replace
    from fixpack.errors import Problem, RegistryError
    from fixpack.target import read_file

    loaded = registry.load(args.registry or registry.default_root())
    chosen = [registry.find_profile(loaded, name) for name in args.profiles] or list(loaded.profiles.values())
    made = {}
    for profile in chosen:
        trees = {
            release.distribution: sources.tree(release) for release in loaded.profile_releases(profile) if release.files
        }
        made[profile.name] = lock.dump(locksmith.make(loaded, profile, trees))
    stale = False
    for name, data in made.items():
        path = os.path.join(loaded.root, "profiles", name + lock.SUFFIX)
        old = read_file(path)
        if isinstance(old, Problem):
            raise RegistryError(old._replace(hint="remove it, and run `fixpack lock` again"))
        state = "unchanged" if old == data else ("stale" if args.check else "written")
        stale = stale or old != data
        if state == "written":
            try:
                replace(path, data)
            except OSError as error:
                message = f"the lock of {name} cannot be written: {error.strerror}"
                raise RegistryError(Problem("lock_not_written", message, file=path)) from error
        print(f"{name}: {state}")
    return 1 if args.check and stale else 0
