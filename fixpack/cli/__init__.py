"""The command line: parse, dispatch to one verb's module, map expected failures to exit codes."""

from __future__ import annotations

import argparse
import io
import os
import sys
from importlib import import_module

from fixpack import __version__
from fixpack.errors import FixpackError, Problem

#: verb -> (module, one-line help); a verb's module is imported only when it runs
VERBS = {
    "apply": ("apply", "bring a profile's fixes in, all or nothing"),
    "verify": ("verify", "exit 0 only if every fix of a profile is in place; writes nothing"),
    "status": ("status", "the state of every fix in an install, and why"),
    "show": ("show", "what a fix changes, why, and when it goes away"),
    "diff": ("diff", "what fixes change in an install, as it has them or would get them"),
    "revert": ("revert", "take fixes out again, back to the pinned bytes, all or nothing"),
    "doctor": ("doctor", "what would make an apply fail later"),
    "image": ("image", "the command that builds a fixed image on top of a stock one"),
    "sbom": ("sbom", "a CycloneDX document of what was fixed"),
    "try": ("try_", "apply a profile to a scratch copy of the pinned releases"),
    "list": ("list_", "profiles, releases and fixes of the registry"),
    "lint": ("lint", "check the registry, and every pin against the cached sources"),
    "lock": ("lock", "regenerate the profiles' locks from the cached sources"),
    "sources": ("sources", "fetch, list and verify the pinned upstream sources"),
    "prove": ("prove", "run each fix's proof on stock and on fixed code"),
    "hotsplit": ("hotsplit", "plan which experts stay in HBM, from counts of routed tokens"),
    "launch": ("launch", "check the command that starts a server by a profile's rules, start it, or write it"),
    "docs": ("docs", "write docs/ from the registry"),
    "schema": ("schema", "print the JSON Schema of a registry file kind"),
}


#: reason codes that say that files are neither all old nor all new
_TORN = ("restore_failed", "write_unfinished", "journal_conflict", "journal_invalid")

#: verbs that write to a target
_WRITE = ("apply", "revert")


def main(argv: list[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(prog="fixpack", description="Named, anchored, proven fixes.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"fixpack {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    asked = next((each for each in arguments if each in VERBS), "")
    for verb, (_, text) in VERBS.items():
        sub = verbs.add_parser(verb, help=text, description=text, allow_abbrev=False)
        if verb == asked:
            try:
                import_module(f"fixpack.cli.{VERBS[verb][0]}").configure(sub)
            except ModuleNotFoundError as error:
                return missing_package(error)
    args = parser.parse_args(arguments)
    return guard(import_module(f"fixpack.cli.{VERBS[args.verb][0]}").run, args)


def missing_package(error: ModuleNotFoundError) -> int:
    """Say which package a verb lacks and what to do; returns the exit code.  Anything else is raised on.

    :raises ModuleNotFoundError: if the missing module is none that a verb is known to need.
    """
    from fixpack.cache import TOOLS
    from fixpack.errors import Problem
    from fixpack.outcome import problem_text

    name = (error.name or "").partition(".")[0]
    if name == "yaml":
        hint = f"run with the interpreter that has vLLM: it has PyYAML; or: {sys.executable} -m pip install PyYAML"
    elif name in TOOLS:
        hint = f"in a checkout: {sys.executable} -m pip install -r requirements/try.txt"
    else:
        raise error
    message = f"{sys.executable} has no Python package {name}"
    print(problem_text(Problem("tool_missing", message, hint=hint)), file=sys.stderr)
    return 2


def guard(run: object, args: argparse.Namespace) -> int:
    """Run a verb; expected failures become a report and an exit code, others a log file and 3."""
    assert callable(run)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a path is any bytes; saying it must not fail
    try:
        return int(run(args))
    except FixpackError as error:
        report(error, args)
        return error.exit_code
    except ModuleNotFoundError as error:
        return missing_package(error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # the file system's answer, not a fault of this program
        where = error.filename if isinstance(error.filename, str) else ""
        report(FixpackError(Problem("io_error", f"{error.strerror or error}", file=where)), args)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        from fixpack.crashlog import write_log

        print(f"internal error: {type(error).__name__}: {error}\n  log: {write_log()}", file=sys.stderr)
        return 3


def report(error: FixpackError, args: argparse.Namespace) -> None:
    """All problems, to stderr for people, to stdout as JSON where that was asked for."""
    from fixpack.outcome import problem_text, problems_json
    from fixpack.text import plural

    if getattr(args, "json", False) is True:
        import json

        body = {
            "schema_version": 1,
            "action": "refused",
            "exit_code": error.exit_code,
            "problems": problems_json(error.problems),
        }
        print(json.dumps(body, indent=1))
    for problem in error.problems:
        print(problem_text(problem), file=sys.stderr)
    torn = any(problem.code in _TORN for problem in error.problems)
    nothing = "; nothing was changed" if getattr(args, "verb", "apply") in _WRITE and not torn else ""
    print(f"{plural(len(error.problems), 'problem')}{nothing}", file=sys.stderr)
