"""The part of a profile's page about the launch command."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from fixpack import launch_case, launch_check, launch_render, serve_line, serve_options
from fixpack.launch_rules import Rule, RuleFile
from fixpack.markdown import Linker, code, fenced, prose, table
from fixpack.model import Profile, Registry

_KINDS = {"required": "must be", "recommended": "should be", "forbidden": "must not be", "holds": "must hold"}


def launch_sections(profile: Profile, registry: Registry) -> list[str]:
    """The launch command, and the rules for it: Markdown blocks below a heading of their own."""
    files = registry.rule_files(profile)
    if not files or "vllm" not in profile.releases:
        return [
            "## Launch",
            "In front of the server, the same command only confirms; the server starts only if every fix is in place:",
            fenced(f"python apply_all.py --profile {profile.name} && exec vllm serve MODEL …", language="sh"),
        ]
    link = Linker(registry.fixes, folder="../fixes/")
    parts = [
        "## Launch",
        "This verifies the fixes, checks the command and its variables by the rules below, then becomes the server; "
        "[launch.md](../launch.md) says more:",
        fenced(f"python -m fixpack launch exec --profile {profile.name} -- vllm serve MODEL …", language="sh"),
    ]
    for model in launch_case.models(files).values():
        command = _command(registry, profile, model.key)
        if command:
            parts += [f"For {prose(model.about)}, this keeps every rule:", fenced(command, language="sh")]
    for file in files:
        parts += _file(profile, file, link)
    return parts


def launch_prohibitions(profile: Profile, registry: Registry) -> list[str]:
    """What the rules forbid, one item of Markdown each."""
    link = Linker(registry.fixes, folder="../fixes/")
    return [
        f"Do not {'give' if rule.is_option else 'set'} {_what(rule)}{_condition(rule, link)}: "
        f"{prose(rule.reason, link)} ({rule.source})."
        for file in registry.rule_files(profile)
        for rule in file.rules
        if rule.kind == "forbidden" and _pinned(profile, rule)
    ]


def _pinned(profile: Profile, rule: Rule) -> bool:
    """Whether the rule can ever apply in this profile."""
    release = profile.releases.get("vllm", "")
    fits = not rule.releases or release in rule.releases
    return fits and {*profile.fixes, *profile.opt_in}.issuperset(rule.fixes) and not {*profile.fixes} & {*rule.without}


def _file(profile: Profile, file: RuleFile, link: Linker) -> Iterator[str]:
    rules = [rule for rule in file.rules if _pinned(profile, rule)]
    yield f"### Rules: {file.name}"
    yield prose(file.about, link)
    rows = [
        [
            code(rule.id),
            f"{_what(rule)} {_KINDS[rule.kind]}{_value(rule)}".replace("|", "\\|"),
            rule.level,
            _applies(rule, link).replace("|", "\\|"),
            f"{prose(rule.reason, link)} ({rule.source})",
        ]
        for rule in rules
    ]
    yield table(["rule", "what", "level", "applies to", "why"], rows)
    used = dict.fromkeys(rule.source for rule in rules)
    yield "Sources: " + "; ".join(f"*{name}*: {prose(file.sources[name], link)}" for name in used) + "."
    if file.notes:
        yield "What no rule can check:"
        yield "\n".join(f"- {prose(note, link)}" for note in file.notes)


def _what(rule: Rule) -> str:
    if rule.holds:
        return code(rule.holds.text)
    if rule.kind != "forbidden":
        return code(rule.subject)
    if rule.match:
        return f"{code(rule.subject)} like {code(rule.match)}"
    return code(launch_check.written(rule))


def _value(rule: Rule) -> str:
    if rule.kind in ("forbidden", "holds"):
        return "" if rule.kind == "holds" else " given" if rule.is_option else " set"
    if rule.allowed:
        told = f" such that {code(rule.allowed.text)}"
    elif rule.match:
        told = f" like {code(rule.match)}"
    elif rule.values:
        told = f" {code(shlex.join(rule.values) if len(rule.values) > 1 else rule.values[0])}"
    else:
        told = " given" if rule.is_option else " set"
    return told + (" or left out" if rule.unset else "")


def _applies(rule: Rule, link: Linker) -> str:
    return _who(rule, link) or "every command"


def _condition(rule: Rule, link: Linker) -> str:
    told = _who(rule, link)
    return f" ({told})" if told else ""


def _who(rule: Rule, link: Linker) -> str:
    told = [", ".join(rule.models)] if rule.models else []
    told += [f"with {', '.join(map(link.to, rule.fixes))}"] if rule.fixes else []
    told += [f"without {', '.join(map(link.to, rule.without))}"] if rule.without else []
    told += [f"when {code(rule.when.text)}"] if rule.when else []
    return "; ".join(told)


def _command(registry: Registry, profile: Profile, model: str) -> str:
    """A command that keeps every rule for a model; "" where there is none."""
    start = ["vllm", "serve", "MODEL"]
    options = serve_options.table(profile.releases["vllm"])
    served = serve_line.read(start, options)
    case = launch_case.Case(registry.rule_files(profile), options, served, {}, frozenset(profile.fixes), model)
    told = any(model in rule.models and rule.kind in ("required", "recommended") for _, rule in case.rules())
    case, words, variables = launch_render.complete(case, start)
    if not told or any(each.level == "error" for each in launch_check.check(case)):
        return ""
    lines = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    lines += [shlex.join(line) for line in launch_render.lines(words)]
    return " \\\n  ".join(["env", *lines] if variables else lines)
