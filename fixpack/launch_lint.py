"""What must hold between rules for the serve command and the profiles that use them."""

from __future__ import annotations

from collections.abc import Iterator

from fixpack.errors import FixpackError, Problem
from fixpack.launch_rules import Rule, RuleFile, formulas
from fixpack.model import Profile, Registry
from fixpack.serve_options import Table, table
from fixpack.serve_values import ValueProblem, convert
from fixpack.text import did_you_mean

VLLM = "vllm"


def check(registry: Registry) -> Iterator[Problem]:
    """Options, fixes, names and values of every rule, for each profile that uses it; each problem once."""
    done: set[tuple[str, int, str]] = set()
    for profile in registry.profiles.values():
        for problem in _check_profile(registry, profile):
            key = (problem.file, problem.line, problem.message)
            if key not in done:
                done.add(key)
                yield problem


def _check_profile(registry: Registry, profile: Profile) -> Iterator[Problem]:
    options: Table | None = None
    release = profile.releases.get(VLLM)
    if profile.launch and release:
        try:
            options = table(release)
        except FixpackError as error:
            yield from (each._replace(file=profile.where) for each in error.problems)
            return
    owners: dict[str, RuleFile] = {}
    models: dict[str, str] = {}
    machines = [rules.name for rules in registry.rule_files(profile) if rules.machine]
    if len(machines) > 1:
        message = f"{' and '.join(machines)} both describe the machine of {profile.name}"
        yield Problem("bad_launch", message, file=profile.where)
    for rules in registry.rule_files(profile):
        for model in rules.models.values():
            if models.setdefault(model.key, model.match) != model.match:
                message = f"two files of {profile.name} match the model {model.key!r} in different ways"
                yield Problem("bad_launch", message, file=rules.where)
        for rule in rules.rules:
            if rule.id in owners and owners[rule.id] is not rules:
                message = f"{owners[rule.id].where} has a rule {rule.id!r} too; names are unique in a profile"
                yield _at(rule, message)
            owners.setdefault(rule.id, rules)
            for release in rule.releases:
                if f"{VLLM}@{release}" not in registry.releases:
                    yield _at(rule, f"the rule {rule.id!r} is for vLLM {release}, which no anchors file pins")
            if not options or not rule.releases or options.release in rule.releases:
                yield from _check_rule(registry, rules, rule, options)


def _at(rule: Rule, message: str, hint: str = "") -> Problem:
    file, _, line = rule.where.rpartition(":")
    return Problem("bad_launch", message, file=file, line=int(line), hint=hint)


def _check_rule(registry: Registry, rules: RuleFile, rule: Rule, options: Table | None) -> Iterator[Problem]:
    said = f"the rule {rule.id!r}"
    for fix in (*rule.fixes, *rule.without):
        if fix not in registry.fixes:
            yield _at(rule, f"{said} names {fix!r}, which is no fix", did_you_mean(fix, registry.fixes))
    release = options.release if options else ""
    known = {*rules.variables, *(options.options if options else ())}
    for formula in formulas(rule):
        for name in formula.names:
            if name not in known:
                message = f"{said} names {name!r} in {formula.text!r}, which is neither an option of vLLM {release}"
                message += " nor among this file's 'variables'"
                yield _at(rule, message, did_you_mean(name, known))
    if rule.is_option:
        option = options.spellings.get(rule.subject) if options else None
        if option is None:
            hint = did_you_mean(rule.subject, options.spellings) if options else "pin a release of vllm in the profile"
            yield _at(rule, f"{said} is about {rule.subject}, which vLLM {release} does not have".rstrip(), hint)
        elif option.kind in ("flag", "bool"):
            if rule.values:
                yield _at(rule, f"{said}: {rule.subject} takes no value")
        elif len(rule.values) > 1 and option.nargs not in ("+", "*") and rule.kind != "forbidden":
            yield _at(rule, f"{said}: {rule.subject} takes one value")
        elif rule.kind != "forbidden" or not rule.match:
            try:
                convert(option, rule.values)
            except ValueProblem as error:
                yield _at(rule, f"{said}: {error}")
    elif len(rule.values) > 1 and rule.kind != "forbidden":
        yield _at(rule, f"{said}: a variable has one value; other texts for it go to 'also'")
