"""A serve command that keeps a profile's rules, as a shell script, a compose file and a Kubernetes manifest."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fixpack import launch_check, serve_line
from fixpack.errors import Problem, UsageError
from fixpack.launch_case import Case
from fixpack.launch_rules import Machine, Rule
from fixpack.serve_options import Table

FILES = ("serve.sh", "compose.yaml", "kubernetes.yaml")
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_UNPRINTABLE = re.compile("[\ud800-\udfff\0]")


class Wish(NamedTuple):
    """What is asked for besides the rules."""

    profile: str
    fixes: tuple[str, ...]  # opt-in fixes
    model: str
    known_as: str  # model of the rules, where the name hides it
    image: str
    name: str  # of the service
    port: int
    fixpack: str  # the engine's folder in the image
    model_dir: str  # a folder of the host that the container sees at the same place; "" for none


class Mount(NamedTuple):
    """A folder of the host that the container sees at the same place."""

    folder: str
    only_read: bool


def check_wish(wish: Wish) -> None:
    """Refuse what no file could carry.

    :raises UsageError: naming each value and what it has to be.
    """
    problems = []

    def bad(message: str, hint: str = "") -> None:
        problems.append(Problem("bad_usage", message, hint=hint))

    if wish.model.startswith("-"):
        bad(
            f"the model {wish.model!r} begins with a dash: vLLM would take it for an option", "write ./ before a folder"
        )
    if not wish.model.strip() or "=" in wish.model.partition("/")[0]:
        bad(f"the model {wish.model!r} is no name that can stand on a command line")
    if not _NAME.fullmatch(wish.name):
        bad(f"the name {wish.name!r} is not one of a service", "small letters, digits and dashes, at most 63")
    if not 1024 <= wish.port <= 65535:
        bad(f"the port {wish.port} is not between 1024 and 65535")
    for option, folder in (("--fixpack-dir", wish.fixpack), ("--model-dir", wish.model_dir)):
        if folder and (not os.path.isabs(folder) or ":" in folder):
            bad(f"{option} {folder!r} is no absolute path without a colon")
    for text in (wish.model, wish.image, wish.fixpack, wish.model_dir):
        if _UNPRINTABLE.search(text):
            bad(f"{text!r} is not UTF-8")
    if problems:
        raise UsageError(*problems)


#: options that the files write themselves, or that would undo those, and what to do instead
_OWN_OPTIONS = {
    "host": "leave it out: in a container the server listens on all addresses",
    "port": "write render's own option --port in front of the --",
    "uds": "leave it out: the files forward a port, and their probes ask it",
}


def check_options(table: Table, options: Sequence[str]) -> None:
    """Refuse options for vLLM that are the files' own.

    :raises UsageError: naming each and what to do instead.
    """
    told = list(options)
    if "--config" in told:  # the command line wins over a file
        del told[told.index("--config") : told.index("--config") + 2]
    spelled = serve_line.read(["vllm", "serve", "MODEL", *told], table).spelled
    problems = [
        Problem("bad_usage", f"{spelled[name]} behind -- is the files' own", hint=hint)
        for name, hint in _OWN_OPTIONS.items()
        if name in spelled
    ]
    if problems:
        raise UsageError(*problems)


def complete(case: Case, words: Sequence[str]) -> tuple[Case, list[str], dict[str, str]]:
    """Add what the rules ask for and the user has not said.

    :param words: the command so far; ``case`` is what it gives.
    :returns: the case of the whole command, its words, and the variables to set.
    """
    told = list(words)
    variables = dict(case.variables)
    while True:
        case = case._replace(served=serve_line.read(told, case.table), variables=variables)
        broken = {each.rule for each in launch_check.check(case)}
        added: dict[str, Rule] = {}  # by subject: of two rules about one, the first decides
        for _, rule in case.rules():
            if rule.id in broken and _adds(case, rule):
                added.setdefault(rule.subject, rule)
        if not added:
            return case, told, variables
        for rule in added.values():
            told += [rule.subject, *rule.values] if rule.is_option else []
        variables = {**variables, **{rule.subject: rule.values[0] for rule in added.values() if not rule.is_option}}


def _adds(case: Case, rule: Rule) -> bool:
    """Whether a broken rule says what to write, and nothing is written yet."""
    if rule.kind not in ("required", "recommended"):
        return False
    if not rule.is_option:
        return bool(rule.values) and rule.subject not in case.variables
    option = case.table.spellings[rule.subject]
    return option.name not in case.served.values and (bool(rule.values) or option.kind in ("flag", "bool"))


def render(case: Case, wish: Wish, serve: Sequence[str], variables: dict[str, str]) -> dict[str, str]:
    """The text of each file.

    :raises UsageError: if Jinja2 is missing, or if a variable names a path that cannot be mounted.
    """
    try:
        import jinja2
    except ModuleNotFoundError as error:
        hint = f"{sys.executable} -m pip install Jinja2 (the extra `launch`)"
        raise UsageError(Problem("missing_library", f"render needs {error.name}", hint=hint)) from error
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # each value goes through the filter of its file
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(shell=shlex.quote, compose=_compose, kubernetes=_kubernetes)
    fixes = [word for fix in wish.fixes for word in ("--fix", fix)]
    known = ["--model", case.model] if wish.known_as else []
    values: dict[str, Any] = {
        **wish._asdict(),
        "machine": next((file.machine for file in case.files if file.machine), None) or _NO_MACHINE,
        "notes": [" ".join(note.split()) for file in case.files for note in file.notes],
        "variables": variables,
        "mounts": [each for each in mounts(case, variables) if (each.folder, each.only_read) != (wish.model_dir, True)],
        "launcher": ["python3", "-m", "fixpack", "launch", "exec", "--profile", wish.profile, *fixes, *known, "--"],
        "serve": list(serve),
        "lines": lines(serve),
        "verify": ["python3", f"{wish.fixpack}/apply_all.py", "--profile", wish.profile, "--check", *wish.fixes],
    }
    return {name: environment.get_template(f"{name}.j2").render(values) for name in FILES}


def lines(words: Sequence[str]) -> list[list[str]]:
    """The program and its model in the first line, then an option with its values in each."""
    made = [list(words[:3])]
    for word in words[3:]:
        if word.startswith("--") or len(made) == 1:
            made.append([])
        made[-1].append(word)
    return made


def mounts(case: Case, variables: Mapping[str, str]) -> list[Mount]:
    """The folders of the host that the variables name, each once; a folder that is written is no more read-only.

    :raises UsageError: for a path that no container could see at the same place.
    """
    found: dict[str, Mount] = {}
    for row in (row for file in case.files for row in file.variables.values() if row.mount):
        text = variables.get(row.name, "")
        if not text:
            continue
        path = text.partition(",")[0] if row.mount == "cache" else text
        folder = os.path.normpath(path if row.mount == "cache" else os.path.dirname(path))
        if not os.path.isabs(path) or folder.strip("/") == "" or ":" in folder:
            message = f"{row.name} is {text!r}: its folder cannot be mounted"
            hint = "name an absolute path without a colon, below a folder of its own"
            raise UsageError(Problem("bad_usage", message, hint=hint))
        only_read = row.mount == "read" and (folder not in found or found[folder].only_read)
        found[folder] = Mount(folder, only_read)
    return list(found.values())


_NO_MACHINE = Machine("", "", "example.com/accelerator", 1, (), False, {})


def _yaml_text(text: str) -> str:
    """A double-quoted YAML scalar: JSON's escapes, and YAML's own for what JSON writes as two halves."""
    inner = "".join(f"\\U{ord(char):08x}" if ord(char) > 0xFFFF else json.dumps(char)[1:-1] for char in text)
    return f'"{inner}"'.replace("\x7f", "\\x7f")


def _compose(text: str) -> str:
    """Compose takes $NAME for a variable of its own, and $$ for a dollar sign."""
    return _yaml_text(text.replace("$", "$$"))


def _kubernetes(text: str) -> str:
    """Kubernetes takes $(NAME) for a variable, and $$ for a dollar sign."""
    return _yaml_text(text.replace("$", "$$"))
