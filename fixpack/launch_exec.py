"""Become the server's process, if it runs on the Python whose packages were verified."""

from __future__ import annotations

import importlib.machinery
import os
import re
import shutil
import site
import sys
from collections.abc import Iterator, Mapping
from typing import NoReturn

from fixpack.errors import MismatchError, Problem, UsageError
from fixpack.serve_line import Command

#: what the server imports, and what therefore must come from where it was verified
PACKAGES = ("vllm", "vllm_gaudi")
#: variables by which a Python finds its packages
IMPORTS = (
    *("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH", "PYTHONNOUSERSITE", "PYTHONUSERBASE", "PYTHONPLATLIBDIR"),
    *("PYTHONEXECUTABLE", "PYTHONCASEOK", "PYTHONPYCACHEPREFIX", "__PYVENV_LAUNCHER__"),
)
#: Python's options that change where packages come from: -I, -E, -s, -S
_IMPORT_FLAGS = re.compile(r"-[A-Za-z]*[IEsS][A-Za-z]*")
#: the first lines of a script: `#!/path/python`, `#!/usr/bin/env python3`, or sh that goes on with a Python
_SHEBANG = re.compile(rb"\A#!\s*(\S+)(?:[ \t]+(\S+))?[^\n]*\n")
_SHELL_TRAMPOLINE = re.compile(rb"\A#![^\n]*/sh\n'''exec' [\"']?([^\"'\n]+?)[\"']? \"\$0\" \"\$@\"")


def program(command: Command, environment: Mapping[str, str]) -> str:
    """The path of what will run.

    :raises UsageError: if there is no such program.
    """
    found = shutil.which(command.program, path={**environment, **command.variables}.get("PATH"))
    if not found:
        hint = "run where vLLM is installed, or name the program with its path"
        raise UsageError(Problem("no_program", f"there is no program {command.program!r}", hint=hint))
    return os.path.abspath(found)


def same_python(path: str, command: Command, environment: Mapping[str, str]) -> None:
    """The program must run on this very Python and import as it does: what was verified is what this one imports.

    :param environment: the server's variables without those in front of the command.
    :raises MismatchError: if it runs on another one or finds its packages elsewhere, or if that cannot be told.
    """
    wanted = {**environment, **command.variables}
    interpreter, flags = _interpreter(path, wanted)
    if not interpreter or _home(interpreter) != _home(sys.executable):
        hint = f"run fixpack with {interpreter}, or " if interpreter else ""
        hint += "name what is to be verified with --site DIR"
        message = f"{path} does not run on this Python, so that verifying this Python's packages proves nothing for it"
        found = interpreter or "no Python script"
        raise MismatchError(Problem("other_python", message, expected=sys.executable, found=found, hint=hint))
    problems = [*_switched(wanted), *_flagged(path, command, flags), *_in_front(path, command)]
    if problems:
        raise MismatchError(*problems)


def _switched(wanted: Mapping[str, str]) -> Iterator[Problem]:
    """Variables by which the server would find other packages than this process."""
    where = "the server would take its packages from elsewhere than those that are verified"
    names = [*IMPORTS, *(["HOME"] if site.ENABLE_USER_SITE else [])]
    for name in names:
        theirs, ours = (each.get(name) or None for each in (wanted, os.environ))
        if name == "PYTHONPATH":
            theirs, ours = (_python_path(each) or None for each in (theirs, ours))
        if theirs != ours:
            hint = f"set {name} for fixpack itself, as for the server, or name what is to be verified with --site DIR"
            message = f"{name} is another one for the server than for this process: {where}"
            yield Problem("other_imports", message, expected=ours or "not set", found=theirs or "not set", hint=hint)
    own = {"-E": sys.flags.ignore_environment, "-S": sys.flags.no_site}
    own["-s"] = sys.flags.no_user_site and not os.environ.get("PYTHONNOUSERSITE")
    given = [flag for flag, is_on in own.items() if is_on]
    if given:
        message = f"fixpack itself runs with python {' '.join(given)}, and the server does not: {where}"
        yield Problem("other_imports", message, hint="run fixpack without it")


def _flagged(path: str, command: Command, shebang: str) -> Iterator[Problem]:
    """Python's own options that change where packages come from, in the command or in a script's first line."""
    before = command.words[: command.words.index("-m")] if command.module else []
    for flag, where in (*((each, "the command") for each in before), (shebang, path)):
        if _IMPORT_FLAGS.fullmatch(flag):
            message = f"{where} gives Python the option {flag}, which changes where packages come from"
            hint = "leave it out, or name what is to be verified with --site DIR"
            yield Problem("other_imports", message, found=flag, hint=hint)


def _in_front(path: str, command: Command) -> Iterator[Problem]:
    """Packages in the folder that the server's Python searches first: the working one with -m, else the script's."""
    if not command.module:
        folder, hint = os.path.dirname(os.path.realpath(path)), "remove it from there"
    elif any(re.fullmatch(r"-[A-Za-z]*P[A-Za-z]*", each) for each in command.words[: command.words.index("-m")]):
        return
    else:
        folder, hint = os.getcwd(), "start from another folder, or write `vllm serve`, which does not look there"
    for name in _packages_in(folder):
        message = f"{name} would be imported from {folder} before the packages that are verified"
        yield Problem("other_imports", message, found=os.path.join(folder, name), hint=hint)


def _packages_in(folder: str) -> list[str]:
    """What of the server's packages a folder holds, as a folder or as one file."""
    files = [name + suffix for name in PACKAGES for suffix in importlib.machinery.all_suffixes()]
    folders = [name for name in PACKAGES if os.path.isdir(os.path.join(folder, name))]
    return [*folders, *(name for name in files if os.path.isfile(os.path.join(folder, name)))]


def _python_path(text: str | None) -> str:
    """A PYTHONPATH for the server: without the engine's folder, where `python -m fixpack` may have needed it."""
    engine = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    entries = text.split(os.pathsep) if text else []
    if _packages_in(engine):
        return text or ""  # it is installed beside the server's packages
    return os.pathsep.join(each for each in entries if os.path.abspath(each or ".") != engine)


def _home(interpreter: str) -> tuple[str, str]:
    """What makes two interpreters one: the folder, as environments are links to one program, and the program."""
    return os.path.realpath(os.path.dirname(os.path.abspath(interpreter))), os.path.realpath(interpreter)


def _interpreter(path: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """The Python that a program is or names ("" if it is neither), and the option that a script's first line gives it.

    :param environment: all variables of the command.
    """
    if re.fullmatch(r"python[0-9.]*", os.path.basename(path)):
        return path, ""
    try:
        with open(path, "rb") as file:
            head = file.read(1024)
    except OSError:  # it may be run, but not read
        return "", ""
    trampoline = _SHELL_TRAMPOLINE.match(head)
    match = trampoline or _SHEBANG.match(head)
    if not match:
        return "", ""
    named = os.fsdecode(match[1])
    option = "" if trampoline else os.fsdecode(match[2] or b"")
    if os.path.basename(named) == "env" and option:
        named, option = shutil.which(option, path=environment.get("PATH")) or "", ""
    return (named, option) if os.path.basename(named).startswith("python") else ("", "")


def become(path: str, command: Command, environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by the command.

    The engine's own folder leaves PYTHONPATH: the server does not need it.

    :raises UsageError: if the system refuses.
    """
    wanted = {**environment, **command.variables}
    if "PYTHONPATH" in wanted:
        wanted["PYTHONPATH"] = _python_path(wanted["PYTHONPATH"])
        if not wanted["PYTHONPATH"]:
            del wanted["PYTHONPATH"]
    try:
        os.execve(path, [command.program, *command.words], wanted)
    except OSError as error:
        message = f"{path} cannot be started: {error.strerror}"
        raise UsageError(Problem("no_program", message)) from error
