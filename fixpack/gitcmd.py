"""Git on one repository, sealed from the user's settings, and what it says when it fails."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fixpack.errors import Problem, SourceError

if TYPE_CHECKING:
    import git

os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # else importing GitPython fails where git is missing

#: Git's environment variables that say how to reach a server; every other one stays outside.
_KEPT = ("GIT_SSL_", "GIT_SSH", "GIT_HTTP_", "GIT_PROXY_", "GIT_EXEC_PATH", "GIT_PYTHON_", "GIT_TRACE")


@contextlib.contextmanager
def repository(gitdir: str, source: str = "") -> Iterator[git.Git]:
    """Git on one bare repository, sealed from the user's and the machine's git configuration.

    `source` is a local path that somebody named as origin: git is told that its owner may be
    another user (an image layer, a mount), for this path and these calls only.
    """
    import git

    with tempfile.NamedTemporaryFile("w", prefix="fixpack-gitconfig-", encoding="utf-8") as config:
        if source:
            for path in dict.fromkeys(
                os.path.join(base, tail).rstrip("/")
                for base in (source, os.path.realpath(source))
                for tail in ("", ".git")
            ):
                quoted = path.replace("\\", "\\\\").replace('"', '\\"')
                config.write(f'[safe]\n\tdirectory = "{quoted}"\n')
            config.flush()
        runner = git.Git(gitdir if os.path.isdir(gitdir) else os.path.dirname(gitdir))
        runner.update_environment(
            GIT_DIR=gitdir,
            GIT_NO_REPLACE_OBJECTS="1",
            GIT_CONFIG_GLOBAL=config.name,
            GIT_CONFIG_NOSYSTEM="1",
            GIT_CEILING_DIRECTORIES=os.path.dirname(gitdir),
            GIT_TERMINAL_PROMPT="0",
            GIT_ASKPASS="true",  # answers nothing: a password prompt must not hang a build
            GIT_SSH_COMMAND=os.environ.get("GIT_SSH_COMMAND") or "ssh -o BatchMode=yes",
            GIT_ALLOW_PROTOCOL="file:git:http:https:ssh",
        )
        # GitPython hands on the whole environment, and no value of GIT_WORK_TREE means "unset".
        outside = [name for name in os.environ if name.startswith("GIT_") and not name.startswith(_KEPT)]
        taken = {name: os.environ.pop(name) for name in outside}
        try:
            yield runner
        except git.GitCommandNotFound as error:
            message = "git is not installed, and this source is a git repository"
            raise SourceError(Problem("git_missing", message, hint="install git, and run this again")) from error
        finally:
            os.environ.update(taken)
            runner.clear_cache()


def git_output(runner: git.Git, *args: str) -> bytes:
    """Standard output of one git command.  Raises: git.GitCommandError."""
    settings = ("gc.auto=0", "maintenance.auto=false", "core.autocrlf=false", "protocol.version=2")
    options = [word for setting in settings for word in ("-c", setting)]
    command = [runner.GIT_PYTHON_GIT_EXECUTABLE or "git", *options, *args]
    return bytes(runner.execute(command, stdout_as_string=False, strip_newline_in_stdout=False))


def reason(error: git.GitCommandError) -> str:
    """What git said, shortened, without credentials."""
    said = str(error.stderr).replace("stderr: ", "").strip().strip("'").splitlines()
    lines = [line.strip() for line in said if line.strip().startswith(("fatal:", "error:", "remote:", "ssh:"))]
    return hide((lines or [line.strip() for line in said if line.strip()] or ["git failed"])[0])


def hide(address: str) -> str:
    """The text without the user and password of any address in it."""
    return re.sub(r"(\w+://)[^/@\s]+@", r"\1", address)
