"""Rules for the launch command of a profile: their records, and the strict reader of ``launch/*.yaml``."""

from __future__ import annotations

import re
from typing import NamedTuple

from fixpack.errors import Problem
from fixpack.finding import ERROR, LEVELS, WARNING
from fixpack.formula import Formula, FormulaError, read
from fixpack.strictyaml import Reader, Value, parse

NAME = r"[a-z0-9]+([.-][a-z0-9]+)*"
OPTION = r"--[a-z0-9]+(-[a-z0-9]+)*"
VARIABLE = r"[A-Z][A-Z0-9_]*"
VARIABLE_KINDS = ("number", "number-or-word", "text")
#: what a container has to see of a path in a variable: a file to read, a file to write, or a folder in front of a comma
MOUNTS = ("read", "write", "cache")

#: how a rule speaks of its option or variable; "holds" is about several
KINDS = ("required", "recommended", "forbidden", "holds")


class ModelRow(NamedTuple):
    """A model that rules name."""

    key: str
    about: str
    match: str  # regular expression, searched in what the command calls the model


class Variable(NamedTuple):
    """An environment variable that formulas name, or that names a path of the host."""

    name: str
    kind: str  # number, number-or-word or text
    unset: str | None  # its value when it is not set; None is "not given"
    mount: str = ""  # one of MOUNTS, where it names a path of the host


class Rule(NamedTuple):
    """One rule."""

    id: str
    kind: str
    subject: (
        str  # "--option" or VARIABLE; "" for holds; PREFIX_* is every variable so named that the file does not list
    )
    values: tuple[str, ...]  # what is right (required, recommended) or wrong (forbidden); () is "any"
    also: tuple[str, ...]  # other texts that mean the same
    match: str  # a regular expression instead; "" if values decide
    allowed: Formula | None  # a formula instead
    unset: bool  # leaving it out is right
    holds: Formula | None
    models: tuple[str, ...]  # () is every model
    fixes: tuple[str, ...]  # it applies with all of these fixes only
    without: tuple[str, ...]  # and with none of these
    releases: tuple[str, ...]  # of vLLM; () is every release
    when: Formula | None
    level: str
    reason: str
    source: str
    remedy: str
    where: str  # "launch/….yaml:LINE"

    @property
    def is_option(self) -> bool:
        """Whether it is about an option of the command, not a variable."""
        return self.subject.startswith("--")


class Machine(NamedTuple):
    """What a container needs besides the command."""

    runtime: str  # container runtime, "" for the default one
    driver: str  # device driver of a compose reservation, "" if none
    resource: str  # Kubernetes resource name of one accelerator
    accelerators: int  # of one server
    capabilities: tuple[str, ...]
    memory_lock: bool  # pinned host memory: no limit on locked memory
    variables: dict[str, str]  # what the container runtime wants to see; not the server's


class RuleFile(NamedTuple):
    """One file of rules."""

    name: str
    about: str
    sources: dict[str, str]
    notes: tuple[str, ...]  # what no rule can check
    models: dict[str, ModelRow]
    variables: dict[str, Variable]
    machine: Machine | None
    rules: tuple[Rule, ...]
    where: str


def load(name: str, data: bytes, path: str, problems: list[Problem]) -> RuleFile | None:
    """Read one file.

    :param path: its name, relative to the registry's root, for the problems.
    :returns: None if anything in it is wrong; ``problems`` then says what.
    """
    value, found = parse(data, path)
    problems.extend(found)
    if value is None or found:
        return None
    before = len(problems)
    top = Reader(value, path, problems, "the launch file")
    said = top.text("launch", pattern=NAME)
    if said and said != name:
        top.bad(f"'launch' is {said!r}, but the file's name says {name!r}", top.line_of("launch"))
    sources = _texts(top, "sources")
    models = {}
    reader = top.sub("models", required=False)
    for key, item in reader.pairs(NAME) if reader else ():
        row = Reader(item, path, problems, f"the model {key!r}")
        models[key] = ModelRow(key, row.text("about"), _expression(row, "match", required=True))
        row.done()
    variables = {}
    reader = top.sub("variables", required=False)
    for key, item in reader.pairs(VARIABLE) if reader else ():
        row = Reader(item, path, problems, f"the variable {key!r}")
        unset = row.text("unset", "") if "unset" in row.fields else None
        row.asked.add("unset")
        variables[key] = Variable(
            key, row.text("kind", oneof=VARIABLE_KINDS), unset, row.text("mount", "", oneof=("", *MOUNTS))
        )
        row.done()
    machine = _machine(top)
    about = top.text("about")
    notes = top.texts("notes")
    rules: list[Rule] = []
    for item in top.items("rules", required=True):
        rules.append(_rule(item, path, problems))
    if not rules and "rules" in top.fields:
        top.bad("there are no rules", top.line_of("rules"))
    top.done()
    made = RuleFile(name, about, sources, notes, models, variables, machine, tuple(rules), path)
    if len(problems) == before:
        _check(made, top)
    return made if len(problems) == before else None


def _texts(top: Reader, key: str) -> dict[str, str]:
    found = {}
    reader = top.sub(key)
    for name, item in reader.pairs(NAME) if reader else ():
        if isinstance(item.data, str) and item.data.strip():
            found[name] = item.data
        elif reader:
            reader.bad(f"{name!r} needs a text", item.line)
    return found


def _machine(top: Reader) -> Machine | None:
    reader = top.sub("machine", required=False)
    if not reader:
        return None
    made = Machine(
        reader.text("runtime", "", NAME),
        reader.text("driver", "", NAME),
        reader.text("resource", pattern=r"[a-z0-9.-]+/[A-Za-z0-9._-]+"),
        reader.integer("count", least=1),
        reader.texts("capabilities", pattern=r"[A-Z][A-Z_]*"),
        reader.flag("memory-lock"),
        {},
    )
    inner = reader.sub("variables", required=False)
    for name, item in inner.pairs(VARIABLE) if inner else ():
        if isinstance(item.data, str) and item.data:
            made.variables[name] = item.data
        elif inner:
            inner.bad(f"{name!r} needs a text", item.line)
    reader.done()
    return made


def _rule(item: Value, path: str, problems: list[Problem]) -> Rule:
    reader = Reader(item, path, problems, "a rule")
    name = reader.text("rule", pattern=NAME)
    reader.what = f"the rule {name!r}" if name else reader.what
    kinds = [kind for kind in KINDS if kind in reader.fields]
    if len(kinds) != 1:
        reader.bad(f"{reader.what} needs one of {', '.join(KINDS)}")
    kind = kinds[0] if kinds else ""
    subjects = f"{OPTION}|{VARIABLE}" + (r"\*?" if kind == "forbidden" else "")
    subject = reader.text(kind, pattern=subjects) if kind and kind != "holds" else ""
    holds = _formula(reader, "holds") if kind == "holds" else None
    for other in KINDS:
        reader.asked.add(other)
    values: tuple[str, ...] = ()
    if isinstance(getattr(reader.fields.get("value"), "data", None), list):
        values = reader.texts("value")
    elif "value" in reader.fields:
        values = (reader.text("value"),)
    reader.asked.add("value")
    rule = Rule(
        name,
        kind,
        subject,
        values,
        reader.texts("also"),
        _expression(reader, "match"),
        _formula(reader, "allowed"),
        reader.flag("unset"),
        holds,
        reader.texts("models", pattern=NAME),
        reader.texts("fixes", pattern=NAME),
        reader.texts("without", pattern=NAME),
        reader.texts("releases", pattern=NAME),
        _formula(reader, "when"),
        reader.text("level", WARNING if kind == "recommended" else ERROR, oneof=LEVELS),
        reader.text("reason"),
        reader.text("source", pattern=NAME),
        reader.text("remedy", ""),
        f"{path}:{item.line}",
    )
    decided = [key for key in ("match", "allowed") if key in reader.fields]
    if len(decided) == 2:
        reader.bad("'match' and 'allowed' exclude each other", reader.line_of("match"))
    if kind == "holds":
        for key in ("value", "also", "match", "allowed", "unset"):
            if key in reader.fields:
                reader.bad(f"a rule that holds has no {key!r}", reader.line_of(key))
        if not rule.remedy:
            reader.bad("a rule that holds needs a remedy: what to change is not plain from one name")
    if rule.also and not rule.values:
        reader.bad("'also' says what else means the same as 'value', which is not there", reader.line_of("also"))
    if kind == "forbidden" and rule.unset:
        reader.bad("'unset' has no meaning for what is forbidden", reader.line_of("unset"))
    reader.done()
    return rule


def _formula(reader: Reader, key: str) -> Formula | None:
    if key not in reader.fields:
        reader.asked.add(key)
        return None
    text = reader.text(key)
    try:
        return read(text) if text else None
    except FormulaError as error:
        reader.bad(f"{key!r} is no formula: {error}", reader.line_of(key))
        return None


def _expression(reader: Reader, key: str, required: bool = False) -> str:
    text = reader.text(key, None if required else "")
    try:
        re.compile(text)
    except re.error as error:
        reader.bad(f"{key!r} is no regular expression: {error}", reader.line_of(key))
        return ""
    return text


def _check(made: RuleFile, top: Reader) -> None:
    """Names inside the file: models, sources, variables."""
    used: set[str] = set()
    seen: set[str] = set()
    for rule in made.rules:
        line = int(rule.where.rpartition(":")[2])
        if rule.id in seen:
            top.bad(f"there are two rules {rule.id!r}", line)
        seen.add(rule.id)
        used.add(rule.source)
        if rule.source not in made.sources:
            top.bad(f"the rule {rule.id!r} names the source {rule.source!r}, which 'sources' lacks", line)
        for model in rule.models:
            if model not in made.models:
                top.bad(f"the rule {rule.id!r} names the model {model!r}, which 'models' lacks", line)
    for name in made.sources.keys() - used:
        top.bad(f"no rule names the source {name!r}", top.line_of("sources"))
    for model in made.models.keys() - {model for rule in made.rules for model in rule.models}:
        top.bad(f"no rule names the model {model!r}", top.line_of("models"))
    named = {name for rule in made.rules for each in formulas(rule) for name in each.names}
    for variable in made.variables.keys() - named - {each.name for each in made.variables.values() if each.mount}:
        top.bad(f"no formula names the variable {variable!r}", top.line_of("variables"))


def formulas(rule: Rule) -> tuple[Formula, ...]:
    """The formulas of a rule."""
    return tuple(each for each in (rule.when, rule.holds, rule.allowed) if each)
