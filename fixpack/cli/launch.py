"""``fixpack launch``: check a serve command by a profile's rules, start it, or write one."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING

from fixpack.cli import target_options

if TYPE_CHECKING:
    from fixpack.finding import Finding
    from fixpack.launch_case import Case

HELP = "check the command that starts a server by a profile's rules, start it, or write it"

EPILOG = """fixpack launch check  --profile P [--env-file F] [--model M] [--fix FIX …] -- vllm serve …
fixpack launch exec   --profile P [--env-file F] [--model M] [--fix FIX …] -- vllm serve …
fixpack launch render --profile P --model M [--fix FIX …] [options] -o DIR

exit codes of check: 0 no error, 1 an error (with --strict: or a warning), 2 usage or invalid registry"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of launch."""
    parser.epilog = EPILOG
    parser.formatter_class = target_options.formatter
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, text in (
        ("check", "report every violation of the profile's rules"),
        ("exec", "verify the fixes, check the rules, then become the command"),
        ("render", "write a shell script, a compose file and a Kubernetes manifest that keep the rules"),
    ):
        action = actions.add_parser(name, help=text, description=text, allow_abbrev=False)
        _configure(action, name)


def _configure(parser: argparse.ArgumentParser, action: str) -> None:
    if action == "exec":
        target_options.add(parser, profile="the profile, by name or alias")
    else:  # nothing is looked at but the command
        parser.add_argument("--profile", metavar="P", help="the profile, by name or alias")
        parser.add_argument("--registry", metavar="DIR", help="use this registry (default: the one beside the engine)")
    fixes = "an opt-in fix that the image has; repeatable"
    parser.add_argument("--fix", metavar="FIX", action="append", default=[], dest="fixes", help=fixes)
    if action == "render":
        from fixpack.cli import launch_render

        launch_render.configure(parser)
        return
    parser.add_argument(
        "--model", metavar="M", default="", help="which model of the rules it is, where its path hides it"
    )
    variables = "variables of the server, NAME=VALUE lines as `docker run --env-file` reads them"
    if action == "check":
        variables += "; without it, this process's own"
        parser.add_argument("--json", action="store_true", help="report as JSON on stdout")
    else:
        variables += ", on top of this process's own"
    parser.add_argument("--env-file", metavar="F", help=variables)
    parser.add_argument("--strict", action="store_true", help="a warning counts as an error")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="vllm serve …")


def run(args: argparse.Namespace) -> int:
    """Check, start or write; returns the exit code."""
    from fixpack.errors import Problem, UsageError

    if not args.profile:
        raise UsageError(Problem("no_profile", "--profile is required", hint="see them with `fixpack list`"))
    if args.action == "render":
        from fixpack.cli import launch_render

        return launch_render.run(args)
    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not words:
        raise UsageError(Problem("bad_usage", "no command", hint="write it behind --, e.g. `-- vllm serve MODEL`"))
    if args.action == "exec":
        return _exec(args, words)
    return _check(args, words)


def _environment(args: argparse.Namespace) -> dict[str, str]:
    """What the server will see: a file's variables alone for a check, on top of our own to start it."""
    from fixpack import envfile

    if not args.env_file:
        return dict(os.environ)
    found = envfile.read(args.env_file, os.environ)
    return found if args.action == "check" else {**os.environ, **found}


def _check(args: argparse.Namespace, words: list[str]) -> int:
    from fixpack import launch_case, launch_check, launch_report

    case = prepare(args, words, _environment(args))
    findings = launch_check.check(case)
    code = launch_report.exit_code(findings, args.strict)
    if args.json:
        body = launch_report.as_json(args.profile, case.model, findings, sum(1 for _ in case.rules()), code)
        print(json.dumps(body, indent=1))
    else:
        print(
            launch_report.as_text(args.profile, findings, sum(1 for _ in case.rules()), launch_case.sources(case.files))
        )
    return code


def prepare(args: argparse.Namespace, words: list[str], environment: dict[str, str]) -> Case:
    """Everything that a check needs; ``args.profile`` becomes the profile's own name.

    :raises UsageError: for an unknown profile, fix or model, and for a command that starts no server.
    :raises RegistryError: if the registry is invalid, or not what the profile's lock was made from.
    """
    from fixpack import launch_case, lock, registry, serve_line, serve_options
    from fixpack.errors import Problem, RegistryError, UsageError

    root = target_options.registry_root(args)
    loaded = registry.load(root)
    profile = registry.find_profile(loaded, args.profile)
    args.profile = profile.name
    stale = lock.stale(root, lock.read(root, profile.name))
    if stale:
        raise RegistryError(*stale)
    strange = [each for each in args.fixes if each not in profile.opt_in]
    unknown = [registry.unknown("fix", each, profile.opt_in) for each in strange]
    if unknown:
        raise UsageError(*(each._replace(message=f"{each.message} to opt in to") for each in unknown))
    files = loaded.rule_files(profile)
    if not files or "vllm" not in profile.releases:
        lacks = "rules for the serve command" if not files else "release of vllm"
        message = f"the profile {profile.name} has no {lacks}"
        hint = "" if files else "name a file of launch/ in the profile's 'launch'"
        raise UsageError(Problem("no_rules", message, hint=hint))
    table = serve_options.table(profile.releases["vllm"])
    served = serve_line.read(words, table)
    fixes = frozenset((*profile.fixes, *args.fixes))
    key = launch_case.model_key(files, args.model, served.model)
    variables = {**environment, **served.command.variables}
    return launch_case.Case(files, table, served, variables, fixes, key)


def _exec(args: argparse.Namespace, words: list[str]) -> int:
    """Verify, check, then become the command; returns only if something is wrong."""
    from fixpack import launch_check, launch_exec, launch_report, lock
    from fixpack.cli.apply import bring_in

    environment = _environment(args)
    case = prepare(args, words, environment)
    program = launch_exec.program(case.served.command, environment)
    if not (args.site or args.root or args.source):
        launch_exec.same_python(program, case.served.command, environment)
    root = target_options.registry_root(args)
    locked = lock.read(root, args.profile)
    args.check, args.update_record, args.json = True, False, False
    target = target_options.open_target(args, locked)
    with contextlib.redirect_stdout(sys.stderr):  # stdout is the server's
        code = bring_in(_without_strict(args), root, locked, target, write=False)
    if code:
        return code
    findings = launch_check.check(case)
    _tell(args, findings, case)
    code = launch_report.exit_code(findings, args.strict)
    if code:
        return code
    sys.stdout.flush()
    sys.stderr.flush()
    launch_exec.become(program, case.served.command, environment)


def _without_strict(args: argparse.Namespace) -> argparse.Namespace:
    """--strict is about the rules here; a foreign change elsewhere in a fixed file is reported as by verify."""
    return argparse.Namespace(**{**vars(args), "strict": False})


def _tell(args: argparse.Namespace, findings: tuple[Finding, ...], case: Case) -> None:
    from fixpack import launch_case, launch_report

    print(
        launch_report.as_text(args.profile, findings, sum(1 for _ in case.rules()), launch_case.sources(case.files)),
        file=sys.stderr,
    )
