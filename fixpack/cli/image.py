"""``fixpack image``: the command that builds a fixed image on a stock one, with every argument of the Dockerfile."""

from __future__ import annotations

import argparse
import os

from fixpack.cli import target_options

HELP = "the command that builds a fixed image on top of a stock one"


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of image."""
    parser.epilog = "It prints the command; --run runs it, and exits with the builder's code."
    parser.add_argument("fixes", nargs="*", metavar="FIX", help="opt-in fixes to add to the profile's own")
    parser.add_argument("--profile", metavar="P", help="the profile, by name or alias")
    parser.add_argument("--base", metavar="NAME[:TAG]@sha256:…", help="the stock image, by digest")
    parser.add_argument("--user", metavar="U", default="root", help="the user of the stock image (default: root)")
    parser.add_argument("--python", metavar="PATH", default="python3", help="the interpreter in it that has vLLM")
    parser.add_argument("--tag", metavar="T", default="", help="name of the result")
    parser.add_argument("--builder", choices=("docker", "buildah", "podman"), default="docker", help="default: docker")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--run", action="store_true", help="run the command instead of printing it")
    how.add_argument("--arguments", action="store_true", help="inside a build: check the arguments that it got")


def run(args: argparse.Namespace) -> int:
    """Print or run the builder's command, or check a build's arguments; returns the exit code."""
    from fixpack import confirm, image, lock
    from fixpack.errors import Problem, RegistryError, UsageError

    args.registry = None
    root = target_options.registry_root(args)
    if args.arguments:
        problems = image.check(root, os.environ, (os.getuid(), os.getgid()))
        if problems:
            raise UsageError(*problems)
        return 0
    for option in ("profile", "base"):
        if not getattr(args, option):
            raise UsageError(Problem("bad_usage", f"--{option} is required"))
    if not os.path.isfile(os.path.join(root, "Dockerfile")):
        message = "the Dockerfile is not here: an image is built from a checkout"
        raise UsageError(Problem("no_checkout", message, file=root, hint="run it in a clone of the repository"))
    locked = lock.find(root, args.profile)
    selection = confirm.select(locked, args.fixes)
    stale = lock.stale(root, locked)
    if stale:
        raise RegistryError(*stale)
    given = image.arguments(root, locked, selection, args.base, args.user, args.python)
    words = image.command(args.builder, given, args.tag, root)
    if args.run:
        return _run(words)
    print(image.shell(words))
    return 0


def _run(words: list[str]) -> int:
    """Become the builder."""
    from fixpack.errors import Problem, UsageError

    try:
        os.execvp(words[0], words)
    except OSError as error:
        hint = "install it, or choose another with --builder"
        raise UsageError(Problem("tool_missing", f"{words[0]} cannot be run: {error.strerror}", hint=hint)) from error
