"""Become the server's process, if it runs on the Python whose packages were verified."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from typing import NoReturn

from fixpack.errors import MismatchError, Problem, UsageError
from fixpack.serve_line import Command

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


def same_python(path: str, environment: Mapping[str, str]) -> None:
    """The program must run on this very Python: what was verified is what this one imports.

    :raises MismatchError: if it runs on another one, or if that cannot be told.
    """
    interpreter = _interpreter(path, environment)
    if interpreter and _home(interpreter) == _home(sys.executable):
        return
    hint = f"run fixpack with {interpreter}" if interpreter else ""
    hint += f"{', or ' if hint else ''}name what is to be verified with --site DIR"
    message = f"{path} does not run on this Python, so that verifying this Python's packages proves nothing for it"
    raise MismatchError(
        Problem("other_python", message, expected=sys.executable, found=interpreter or "no Python script", hint=hint)
    )


def _home(interpreter: str) -> tuple[str, str]:
    """What makes two interpreters one: the folder, as environments are links to one program, and the program."""
    return os.path.realpath(os.path.dirname(os.path.abspath(interpreter))), os.path.realpath(interpreter)


def _interpreter(path: str, environment: Mapping[str, str]) -> str:
    """The Python that a program is or names; "" if it is neither."""
    if re.fullmatch(r"python[0-9.]*", os.path.basename(path)):
        return path
    with open(path, "rb") as file:
        head = file.read(1024)
    match = _SHELL_TRAMPOLINE.match(head) or _SHEBANG.match(head)
    if not match:
        return ""
    named = os.fsdecode(match[1])
    if os.path.basename(named) == "env" and match[2]:
        named = shutil.which(os.fsdecode(match[2]), path=environment.get("PATH")) or ""
    return named if os.path.basename(named).startswith("python") else ""


def become(path: str, command: Command, environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by the command.

    The engine's own folder leaves PYTHONPATH, where `python -m fixpack` may have needed it: the server does not.

    :raises UsageError: if the system refuses.
    """
    wanted = {**environment, **command.variables}
    engine = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if "PYTHONPATH" in wanted:
        rest = [each for each in wanted["PYTHONPATH"].split(os.pathsep) if os.path.abspath(each or ".") != engine]
        if rest:
            wanted["PYTHONPATH"] = os.pathsep.join(rest)
        else:
            del wanted["PYTHONPATH"]
    try:
        os.execve(path, [command.program, *command.words], wanted)
    except OSError as error:
        message = f"{path} cannot be started: {error.strerror}"
        raise UsageError(Problem("no_program", message)) from error
