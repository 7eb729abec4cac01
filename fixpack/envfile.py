"""Files of environment variables as ``docker run --env-file`` reads them: NAME=VALUE lines, nothing quoted."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping

from fixpack.errors import Problem, UsageError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_BYTES = 1 << 20


def read(path: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of a file.

    A value is the rest of its line, quotes included; a NAME alone takes the value of ``environment``, if it has one.

    :raises UsageError: with every line that cannot be read.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would be waited for
            hint = "write the variables to a file"
            raise UsageError(Problem("bad_env_file", "it is not an ordinary file", file=path, hint=hint))
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(Problem("bad_env_file", f"it cannot be read: {error.strerror}", file=path)) from error
    if len(data) > MAX_BYTES:
        raise UsageError(Problem("bad_env_file", f"it has more than {MAX_BYTES} bytes", file=path))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(Problem("bad_env_file", f"it is not UTF-8: {error.reason}", file=path)) from error
    found: dict[str, str] = {}
    problems = []
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r").lstrip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not _NAME.fullmatch(name) or "\0" in value:
            hint = "write NAME=VALUE, without `export` and without spaces around the sign"
            problems.append(Problem("bad_env_file", f"{line[:60]!r} sets no variable", "", path, number, hint=hint))
        elif value[:1] in "\"'" and value[1:] and value[-1:] == value[:1]:
            hint = f"write {name}={value[1:-1]}: in such a file quotes are part of the value"
            problems.append(Problem("bad_env_file", f"the value of {name} is quoted", "", path, number, hint=hint))
        elif equals:
            found[name] = value
        elif name in environment:
            found[name] = environment[name]
    if problems:
        raise UsageError(*problems)
    return found
