"""``fixpack launch render``: write the files that start a server as a profile's rules want it."""

from __future__ import annotations

import argparse
import os
import re

from fixpack.errors import FixpackError, MismatchError, Problem, UsageError
from fixpack.launch_exec import IMPORTS

MARK = "# Made by `fixpack launch render`"


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of render."""
    parser.add_argument("--model", metavar="M", required=True, help="what vLLM is to serve: a name, or a folder")
    parser.add_argument("--as", metavar="M", default="", dest="known_as", help="which model of the rules it is")
    parser.add_argument("--image", metavar="I", help="the image with the fixes in it (default: vllm-fixed:PROFILE)")
    parser.add_argument("--name", metavar="N", help="name of the service (default: vllm-PROFILE)")
    parser.add_argument("--port", type=int, default=8000, help="default: 8000")
    parser.add_argument("--env", metavar="N=V", action="append", default=[], help="a variable to set; repeatable")
    parser.add_argument(
        "--model-dir", metavar="DIR", default="", help="a folder of the host to mount at the same place"
    )
    parser.add_argument(
        "--fixpack-dir", metavar="DIR", default="/opt/fixpack", help="in the image; default: /opt/fixpack"
    )
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="folder for the files")
    parser.add_argument("options", nargs=argparse.REMAINDER, metavar="-- OPTIONS", help="more options for vLLM")


def run(args: argparse.Namespace) -> int:
    """Write the files; returns 0.

    :raises MismatchError: if the rules forbid what is asked for; then nothing is written.
    """
    from fixpack import launch_case, launch_check, launch_render, launch_report
    from fixpack.cli.launch import prepare
    from fixpack.finding import ERROR
    from fixpack.registry import find_profile, load

    profile = find_profile(load(_root(args)), args.profile)
    wish = launch_render.Wish(
        profile.name,
        tuple(dict.fromkeys(args.fixes)),
        args.model,
        args.known_as,
        args.image or f"vllm-fixed:{profile.name}",
        args.name or "vllm-" + re.sub(r"[^a-z0-9]+", "-", profile.name),
        args.port,
        args.fixpack_dir.rstrip("/") or "/",
        args.model_dir,
    )
    launch_render.check_wish(wish)
    options = args.options[1:] if args.options[:1] == ["--"] else args.options
    words = ["vllm", "serve", args.model, "--host", "0.0.0.0", "--port", str(args.port), *options]
    chosen = argparse.Namespace(**{**vars(args), "model": args.known_as})
    case = prepare(chosen, words, _variables(args.env))
    launch_render.check_options(case.table, options)
    case, words, variables = launch_render.complete(case, words)
    found = launch_check.check(case, named_by="--as")
    wrong = [each for each in found if each.level == ERROR]
    if wrong:
        raise MismatchError(
            *(
                Problem("rule_broken", f"{each.message} [{each.rule}]", hint=each.remedy or each.reason)
                for each in wrong
            )
        )
    _write(args.output, launch_render.render(case, wish, words, variables))
    print(launch_report.as_text(profile.name, found, sum(1 for _ in case.rules()), launch_case.sources(case.files)))
    print("\n".join(f"written: {os.path.join(args.output, name)}" for name in launch_render.FILES))
    return 0


def _root(args: argparse.Namespace) -> str:
    from fixpack.cli import target_options

    return target_options.registry_root(args)


def _variables(given: list[str]) -> dict[str, str]:
    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or name in found:
            raise UsageError(Problem("bad_usage", f"--env needs NAME=VALUE, each name once, not {each!r}"))
        if name == "PYTHONPATH":
            raise UsageError(Problem("bad_usage", "PYTHONPATH is the files' own: it names the engine's folder"))
        if name in IMPORTS:
            hint = "leave it out, or set it in the image, where the fixes are applied with it too"
            raise UsageError(Problem("bad_usage", f"{name} changes where Python takes packages from", hint=hint))
        found[name] = value
    return found


def _write(folder: str, files: dict[str, str]) -> None:
    """Write all files; those of an earlier run are replaced, others are left alone.

    :raises FixpackError: if a file is there that this verb did not make.
    """
    os.makedirs(folder, exist_ok=True)
    for name in files:
        path = os.path.join(folder, name)
        if os.path.lexists(path) and not _is_ours(path):
            message = "it is there already, and not made by `fixpack launch render`"
            raise FixpackError(
                Problem("file_exists", message, file=path, hint="remove it, or name another folder with -o")
            )
    for name, text in files.items():
        path = os.path.join(folder, name)
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        if name.endswith(".sh"):
            os.chmod(path, 0o755)


def _is_ours(path: str) -> bool:
    if os.path.islink(path) or not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return MARK.encode() in file.read(200)
