"""Check a serve command and its environment against the rules of a profile."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fixpack.finding import ERROR, NOTE, WARNING, Finding
from fixpack.formula import Formula, Undecided, Value
from fixpack.launch_case import Case, applies, models
from fixpack.launch_rules import Rule, RuleFile, Variable
from fixpack.serve_options import Option
from fixpack.serve_values import ValueProblem, convert
from fixpack.text import did_you_mean, plural


def check(case: Case, named_by: str = "--model") -> tuple[Finding, ...]:
    """All that is wrong, errors first; within a level in the order of the rules.

    :param named_by: the option that says which model of the rules it is.
    """
    findings = [*case.served.findings, *_misspelled(case)]
    left_out = 0
    for file in case.files:
        fitting = [rule for rule in file.rules if applies(rule, case.fixes, case.table.release)]
        left_out += sum(1 for rule in fitting if rule.models and not case.model)
    for file, rule in case.rules():
        findings += _check_rule(case, file, rule)
    if left_out and case.served.model:
        known = models(case.files)
        message = f"{case.served.model!r} is none of {', '.join(known)}: {plural(left_out, 'rule')} not checked"
        remedy = f"if it is one of them, say so with {named_by}"
        findings.append(Finding(NOTE, "model-unknown", "", message, remedy=remedy))
    order = (ERROR, WARNING, NOTE)
    return tuple(sorted(findings, key=lambda each: order.index(each.level)))


def _check_rule(case: Case, file: RuleFile, rule: Rule) -> Iterator[Finding]:
    try:
        names = _names(case, file, rule)
    except ValueProblem as error:
        yield _finding(file, rule, str(error))
        return
    if rule.when:
        try:
            if not rule.when.holds(names):
                return
        except Undecided:
            return  # what it depends on is not given
    if rule.holds:
        yield from _holds(file, rule, rule.holds, names)
    elif rule.is_option:
        yield from _option(case, file, rule, case.table.spellings[rule.subject], names)
    else:
        yield from _variable(case, file, rule, names)


def _finding(file: RuleFile, rule: Rule, message: str, level: str = "", remedy: str = "") -> Finding:
    source = f"{file.name}/{rule.source}"
    return Finding(level or rule.level, rule.id, rule.subject, message, rule.reason, source, rule.remedy or remedy)


def _names(case: Case, file: RuleFile, rule: Rule) -> dict[str, Value]:
    """A value for every name in the rule's formulas.

    :raises ValueProblem: if a variable is no number where one is needed.
    """
    found: dict[str, Value] = {}
    for formula in (rule.when, rule.holds, rule.allowed):
        for name in formula.names if formula else ():
            if name in file.variables:
                found[name] = variable_value(file.variables[name], case.variables)
            else:
                found[name] = _scalar(option_value(case.table.options[name], case.served.values))
    return found


def variable_value(variable: Variable, environment: Mapping[str, str]) -> Value:
    """What a variable's text means.

    :raises ValueProblem: if it is no number where one is needed.
    """
    text = environment.get(variable.name, variable.unset)
    if text is None or variable.kind == "text":
        return text
    try:
        return float(text)
    except ValueError:
        if variable.kind == "number-or-word":
            return text.strip()
        raise ValueProblem(f"{variable.name} is {text!r}, which is no number") from None


def option_value(option: Option, values: Mapping[str, Any]) -> Any:
    """What is given, else vLLM's own constant; None if neither is known."""
    return values.get(option.name, False if option.kind == "flag" else option.default)


def _scalar(value: Any) -> Value:
    """A formula's view: numbers and texts as they are, anything larger only as something that is there."""
    return value if value is None or isinstance(value, bool | int | float | str) else True


def _holds(file: RuleFile, rule: Rule, formula: Formula, names: Mapping[str, Value]) -> Iterator[Finding]:
    shown = ", ".join(f"{name} is {_shown(names[name])}" for name in formula.names)
    try:
        if not formula.holds(names):
            yield _finding(file, rule, f"{formula.text} does not hold: {shown}")
    except Undecided as error:
        level = WARNING if rule.level == ERROR else rule.level
        yield _finding(file, rule, f"{formula.text} cannot be decided: {error}", level)


def _shown(value: Value) -> str:
    if value is None:
        return "not given"
    return f"{value:,.10g}" if isinstance(value, float) else str(value)


# -- options ----------------------------------------------------------------------------------------------------------


def _option(case: Case, file: RuleFile, rule: Rule, option: Option, names: Mapping[str, Value]) -> Iterator[Finding]:
    given = option.name in case.served.values
    value = option_value(option, case.served.values)
    wanted = written(rule)
    if rule.kind == "forbidden":
        if given and _is_wrong(rule, option, value, names):
            yield _finding(file, rule, f"{_told(case, option, value)}, which must not be", remedy=f"leave out {wanted}")
        return
    if not given and (rule.unset or (value is not None and _is_right(rule, option, value, names))):
        return
    want = "must" if rule.kind == "required" else "should"
    if not given:
        silent = value is None or value == "" or option.kind in ("flag", "bool")
        says = f"{rule.subject} is not given" if silent else f"{rule.subject} is {value!r}, vLLM's default"
        yield _finding(file, rule, f"{says}; it {want} be {_right(rule)}", remedy=f"add {wanted}")
    elif not _is_right(rule, option, value, names):
        message = f"{_told(case, option, value)}; it {want} be {_right(rule)}"
        if option.kind in ("flag", "bool"):
            message = f"{case.served.spelled[option.name]} is given; it {want} be {rule.subject}"
        yield _finding(file, rule, message, remedy=f"write {wanted}")


def _told(case: Case, option: Option, value: Any) -> str:
    spelled = case.served.spelled[option.name]
    return f"{spelled} is given" if option.kind in ("flag", "bool") else f"{spelled} is {_text(value)}"


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else "auto" if value is None else str(value)


def written(rule: Rule) -> str:
    """The rule's option or variable as it would be written."""
    if rule.is_option:
        return shlex.join((rule.subject, *rule.values))
    return f"{rule.subject}={rule.values[0]}" if rule.values else rule.subject


def _right(rule: Rule) -> str:
    """What a rule asks for, in words."""
    if rule.allowed:
        return f"such that {rule.allowed.text}"
    if rule.match:
        return f"like {rule.match}"
    if not rule.values:
        return "given"
    return " or ".join((" ".join(rule.values), *rule.also))


def _is_right(rule: Rule, option: Option, value: Any, names: Mapping[str, Value]) -> bool:
    if rule.allowed:
        return _decided(rule.allowed, names)
    if rule.match:
        return re.fullmatch(rule.match, _text(value)) is not None
    if option.kind in ("flag", "bool"):
        return value is True
    if not rule.values:
        return True
    return any(_same(option, texts, value) for texts in (rule.values, *([each] for each in rule.also)))


def _is_wrong(rule: Rule, option: Option, value: Any, names: Mapping[str, Value]) -> bool:
    """Whether a forbidden option's value is the forbidden one."""
    if option.kind in ("flag", "bool"):
        return value is True
    if rule.allowed:
        return not _decided(rule.allowed, names)
    if rule.match:
        return re.fullmatch(rule.match, _text(value)) is not None
    return not rule.values or any(_same(option, [text], value) for text in (*rule.values, *rule.also))


def _decided(formula: Formula, names: Mapping[str, Value]) -> bool:
    try:
        return formula.holds(names)
    except Undecided:
        return False


def _same(option: Option, texts: Sequence[str], value: Any) -> bool:
    """Lists as sets; of a JSON object the keys that the rule names; otherwise equal."""
    try:
        wanted = convert(option, texts)
    except ValueProblem:
        return False
    if isinstance(wanted, list) and isinstance(value, list):
        return sorted(map(str, wanted)) == sorted(map(str, value))
    return _covers(value, wanted)


def _covers(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict) and isinstance(value, dict):
        return all(key in value and _covers(value[key], each) for key, each in wanted.items())
    return bool(value == wanted)


# -- variables --------------------------------------------------------------------------------------------------------


def _variable(case: Case, file: RuleFile, rule: Rule, names: Mapping[str, Value]) -> Iterator[Finding]:
    if rule.subject.endswith("*"):
        for name in sorted(case.variables):
            if name.startswith(rule.subject[:-1]) and name not in file.variables:
                found = _finding(file, rule, f"{name} is set, which nothing knows", remedy=f"unset {name}")
                hint = did_you_mean(name, file.variables)
                yield found._replace(subject=name, remedy=hint or found.remedy)
        return
    text = case.variables.get(rule.subject)
    wanted = written(rule)
    if rule.kind == "forbidden":
        if text is not None and (not (rule.values or rule.match or rule.allowed) or _fits(rule, text, names)):
            remedy = f"unset {rule.subject}"
            yield _finding(file, rule, f"{rule.subject} is {text!r}, which must not be", remedy=remedy)
        return
    want = "must" if rule.kind == "required" else "should"
    if text is None:
        if not rule.unset:
            yield _finding(
                file, rule, f"{rule.subject} is not set; it {want} be {_right(rule)}", remedy=f"set {wanted}"
            )
    elif not _fits(rule, text, names):
        yield _finding(file, rule, f"{rule.subject} is {text!r}; it {want} be {_right(rule)}", remedy=f"set {wanted}")


def _fits(rule: Rule, text: str, names: Mapping[str, Value]) -> bool:
    if rule.allowed:
        return _decided(rule.allowed, names) is (rule.kind != "forbidden")
    if rule.match:
        return re.fullmatch(rule.match, text) is not None
    if not rule.values:
        return bool(text)
    return text.strip().lower() in {each.lower() for each in (*rule.values, *rule.also)}


def _misspelled(case: Case) -> Iterator[Finding]:
    """Variables that are almost one that a rule speaks of."""
    spoken = {rule.subject for file in case.files for rule in file.rules if rule.subject and not rule.is_option}
    spoken |= {name for file in case.files for name in file.variables}
    prefixes = tuple({name.partition("_")[0] + "_" for name in spoken})
    refused = tuple(rule.subject[:-1] for _, rule in case.rules() if rule.subject.endswith("*"))
    for name in sorted(case.variables):
        if refused and name.startswith(refused):
            continue  # a rule reports it
        if name in spoken or name in case.table.variables or not name.upper().startswith(prefixes):
            continue
        hint = did_you_mean(name.upper(), spoken)
        if hint:
            message = f"{name} is set, which neither vLLM {case.table.release} nor a rule knows"
            yield Finding(WARNING, "unknown-variable", name, message, remedy=hint)
