"""A command line that starts a vLLM server, read as vLLM's own parser reads it."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from fixpack.errors import Problem, UsageError
from fixpack.finding import ERROR, NOTE, WARNING, Finding
from fixpack.serve_config import config_arguments
from fixpack.serve_options import Option, Table
from fixpack.serve_values import ValueProblem, convert, merge_dotted
from fixpack.text import did_you_mean

#: modules that ``python -m`` starts a server with
MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.launchers.api_server.entry")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.S)
#: Python's own options before -m; the last two take a value
_PYTHON_ALONE = re.compile(r"-[bBdEhiIOPqRsSuvx]+")
_PYTHON_VALUE = ("-W", "-X")


class Command(NamedTuple):
    """What a command line says before vLLM's arguments."""

    program: str  # "vllm", or a Python
    module: str  # what -m names; "" for `vllm serve`
    variables: dict[str, str]  # set in front of it, `env A=b` or `A=b`
    words: list[str]  # all after the program
    arguments: list[str]  # those after `serve`, or after the module


class Served(NamedTuple):
    """What vLLM would be told."""

    command: Command
    model: str  # "" if none is named
    values: dict[str, Any]  # by vLLM's name of the value, only what is given
    spelled: dict[str, str]  # how each was spelled, or the configuration file's name
    findings: tuple[Finding, ...]  # what vLLM would refuse, drop or ignore


def split(words: Sequence[str]) -> Command:
    """Find the server's command.

    :raises UsageError: if the words start no vLLM server.
    """
    rest = list(words)
    variables: dict[str, str] = {}
    if rest and os.path.basename(rest[0]) == "env":
        del rest[0]
    while rest and (match := _ASSIGNMENT.fullmatch(rest[0])):
        variables[match[1]] = match[2]
        del rest[0]
    program = os.path.basename(rest[0]) if rest else ""
    if program == "vllm" and rest[1:2] == ["serve"]:
        return Command(rest[0], "", variables, rest[1:], rest[2:])
    if re.fullmatch(r"python[0-9.]*", program):
        at = 1
        while at < len(rest) and (_PYTHON_ALONE.fullmatch(rest[at]) or rest[at] in _PYTHON_VALUE):
            at += 2 if rest[at] in _PYTHON_VALUE else 1
        if rest[at : at + 1] == ["-m"] and rest[at + 1 : at + 2] and rest[at + 1] in MODULES:
            return Command(rest[0], rest[at + 1], variables, rest[1:], rest[at + 2 :])
    found = " ".join(map(repr, words[:4])) or "nothing"
    hint = f"write `-- vllm serve MODEL …`, or `-- python -m {MODULES[0]} …`, without a shell around it"
    raise UsageError(Problem("not_a_server", "this command starts no vLLM server", found=found, hint=hint))


def read(words: Sequence[str], table: Table) -> Served:
    """Read a command with a release's options.

    :raises UsageError: if the words start no vLLM server.
    """
    command = split(words)
    findings: list[Finding] = []
    try:
        arguments, from_file = _arranged(command, table, findings)
        parser = _Parser(table)
        seen, left = parser.read(arguments)
    except ValueProblem as error:
        return Served(command, "", {}, {}, (*findings, _finding("refused", str(error))))
    findings += _strays(left, table)
    values: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    model = ""
    for option, spelling, texts in seen:
        if option is None:
            model = texts[0]
            continue
        if option.name in values and not option.append and option.spelling not in from_file:
            message = f"{option.spelling} is given more than once; vLLM takes the last one and only logs it"
            findings.append(_finding("given-twice", message, WARNING, option.spelling))
        try:
            value = _value(option, spelling, texts)
        except ValueProblem as error:
            findings.append(_finding("refused", f"{spelling}: {error}", subject=option.spelling))
            continue
        values[option.name] = [*values.get(option.name, ()), value] if option.append else value
        spelled[option.name] = spelling
    findings += _about_config(values, spelled)
    if command.module:
        if model:
            message = f"{model!r} is ignored: with `python -m` only --model names the model"
            findings.append(_finding("model-ignored", message, subject="--model"))
        model = str(values.get("model") or "")
    elif not model:
        model = str(values.get("model") or "")
    if model:
        values["model"] = model
        spelled.setdefault("model", "MODEL")
    else:
        message = "no model is named, so vLLM would serve its default, a small one"
        findings.append(_finding("no-model", message, subject="--model"))
    return Served(command, model, values, spelled, tuple(findings))


def _finding(rule: str, message: str, level: str = ERROR, subject: str = "", remedy: str = "") -> Finding:
    return Finding(level, rule, subject, message, reason="this is how vLLM reads its command line", remedy=remedy)


def _arranged(command: Command, table: Table, findings: list[Finding]) -> tuple[list[str], frozenset[str]]:
    """The arguments as vLLM hands them to argparse, and the options of a configuration file.

    :raises ValueProblem: where vLLM stops.
    """
    arguments = list(command.arguments)
    if not command.module:
        arguments = _model_first(arguments)
    from_file: frozenset[str] = frozenset()
    if "--config" in arguments:
        at = arguments.index("--config")
        if arguments.count("--config") > 1:
            raise ValueProblem("--config is given more than once")
        if at + 1 == len(arguments):
            raise ValueProblem("--config lacks its value")
        file = arguments[at + 1]
        found, dropped = config_arguments(file, table if command.module else None)
        for key in dropped:
            message = f"{file} sets {key} to false, which this vLLM drops without a word"
            remedy = f"write --no-{key} on the command line"
            findings.append(_finding("false-dropped", message, WARNING, f"--{key}", remedy))
        from_file = frozenset(_dashed(each).partition(".")[0] for each in found if each.startswith("--"))
        own = not arguments[0].startswith("-")
        head = 1 if own else 0
        arguments = [*arguments[:head], *found, *arguments[head:at], *arguments[at + 2 :]]
        if not command.module and not own and "--model" not in found:
            raise ValueProblem(f"no model: neither in front of the options nor in {file}")
    arguments = _levels([_dashed(each) for each in arguments])
    arguments, twice = merge_dotted(arguments)
    for key in twice:
        message = f"{key} is given more than once; vLLM takes the last one and only logs it"
        findings.append(_finding("given-twice", message, WARNING, key))
    return arguments, from_file


def _model_first(arguments: list[str]) -> list[str]:
    """``vllm serve`` moves --model to the place of the model's name."""
    at = next((index for index, each in enumerate(arguments) if re.match(r"--model(=.+|$)", each)), None)
    if at is None:
        return arguments
    if arguments[at] != "--model":
        return [arguments[at].removeprefix("--model="), *arguments[:at], *arguments[at + 1 :]]
    if at + 1 == len(arguments):
        raise ValueProblem("--model lacks its value")
    return [arguments[at + 1], *arguments[:at], *arguments[at + 2 :]]


def _dashed(argument: str) -> str:
    """Underscores of an option's name as dashes; keys behind a dot and values stay."""
    if not argument.startswith("--"):
        return argument
    key, equals, value = argument.partition("=")
    name, dot, path = key.partition(".")
    return name.replace("_", "-") + dot + path + equals + value


def _levels(arguments: list[str]) -> list[str]:
    """``-O3``, ``-O=3`` and ``-O 3`` as the long option."""
    made: list[str] = []
    for index, argument in enumerate(arguments):
        if argument.startswith("-O") and argument != "-O":
            made += ["--optimization-level", argument[3:] if argument[2] == "=" else argument[2:]]
        elif argument == "-O" and arguments[index + 1 : index + 2] and arguments[index + 1] in ("0", "1", "2", "3"):
            made.append("--optimization-level")
        else:
            made.append(argument)
    return made


Seen = tuple["Option | None", str, list[str]]


class _Parser(argparse.ArgumentParser):
    """Argparse with a release's options; it only notes what it sees, in order."""

    def __init__(self, table: Table) -> None:
        super().__init__(prog="vllm serve", add_help=False)
        self.seen: list[Seen] = []
        self.table = table
        note = _note(self.seen, None)
        self.add_argument("model_tag", nargs="?", action=note, default=argparse.SUPPRESS)
        for option in table.options.values():
            nargs: Any = 0 if option.kind in ("flag", "bool") else option.nargs or None
            self.add_argument(
                option.spelling, *option.also, nargs=nargs, action=_note(self.seen, option), default=argparse.SUPPRESS
            )

    def error(self, message: str) -> NoReturn:
        """Argparse's exit as an exception."""
        raise ValueProblem(message)

    def read(self, arguments: Sequence[str]) -> tuple[list[Seen], list[str]]:
        """What was given, in order, and the words that belong to nothing.

        :raises ValueProblem: where argparse stops.
        """
        _, left = self.parse_known_args(list(arguments))
        return self.seen, left


def _note(seen: list[Seen], option: Option | None) -> type[argparse.Action]:
    class Note(argparse.Action):
        def __call__(self, parser: object, namespace: object, values: object, option_string: str | None = None) -> None:
            if values is None and option is None:
                return  # no positional
            texts = list(values) if isinstance(values, list) else [] if values is None else [str(values)]
            seen.append((option, option_string or "", texts))

    return Note


def _value(option: Option, spelling: str, texts: list[str]) -> Any:
    if option.kind == "flag":
        return True
    if option.kind == "bool":
        return spelling not in option.off
    return convert(option, texts)


def _strays(left: Sequence[str], table: Table) -> list[Finding]:
    """Options that vLLM does not have; their values are named with them."""
    findings = []
    follows = ""
    for word in left:
        if word.startswith("-") and word != "--":
            name = word.partition("=")[0].partition(".")[0]
            hint = did_you_mean(name, table.spellings)
            message = f"vLLM {table.release} has no option {name}"
            findings.append(_finding("unknown-option", message, subject=name, remedy=hint))
            follows = name
        elif not follows:
            findings.append(_finding("stray-word", f"{word!r} belongs to no option; vLLM refuses it"))
    return findings


def _about_config(values: Mapping[str, Any], spelled: Mapping[str, str]) -> list[Finding]:
    """Options of which vLLM does not do what one would think."""
    findings = []
    if "config" in values:
        message = f"{spelled['config']}={values['config']} is ignored"
        remedy = "write it in two words: --config FILE"
        findings.append(_finding("config-ignored", message, subject="--config", remedy=remedy))
    if values.get("help"):
        findings.append(_finding("help", "with --help nothing is served", NOTE, "--help"))
    return findings
