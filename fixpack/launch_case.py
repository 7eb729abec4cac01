"""What a check of a launch command is made with: the rules, the command, the variables, the fixes, the model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from fixpack.errors import Problem, UsageError
from fixpack.launch_rules import ModelRow, Rule, RuleFile
from fixpack.serve_line import Served
from fixpack.serve_options import Table
from fixpack.text import did_you_mean


class Case(NamedTuple):
    """What is checked, and with what."""

    files: tuple[RuleFile, ...]
    table: Table
    served: Served
    variables: Mapping[str, str]  # the environment, with what stands in front of the command
    fixes: frozenset[str]  # those that the image has
    model: str  # key of a model that the rules name; "" if it is none of them

    def rules(self) -> Iterator[tuple[RuleFile, Rule]]:
        """The rules that are about this model and these fixes; their 'when' is not looked at."""
        for file in self.files:
            for rule in file.rules:
                if (not rule.models or self.model in rule.models) and applies(rule, self.fixes, self.table.release):
                    yield file, rule


def applies(rule: Rule, fixes: frozenset[str], release: str) -> bool:
    """Whether a rule is meant for an image with these fixes and this release of vLLM."""
    fits = not rule.releases or release in rule.releases
    return fits and fixes.issuperset(rule.fixes) and fixes.isdisjoint(rule.without)


def models(files: Sequence[RuleFile]) -> dict[str, ModelRow]:
    """The models that some files name, by key."""
    return {key: row for file in files for key, row in file.models.items()}


def model_key(files: Sequence[RuleFile], named: str, model: str) -> str:
    """Which model of the rules it is; "" if none.

    :param named: what the user says it is, a key or a model's name; "" if nothing.
    :param model: what the command calls it.
    :raises UsageError: if the user's word is none that the rules know.
    """
    known = models(files)
    if named in known:
        return named
    found = [row.key for row in known.values() if re.search(row.match, named or model)]
    if named and not found:
        hint = did_you_mean(named, known) or f"known: {', '.join(known) or 'none'}"
        raise UsageError(Problem("unknown_model", f"the rules name no model {named!r}", hint=hint))
    return found[0] if found else ""


def sources(files: Sequence[RuleFile]) -> dict[str, str]:
    """What each source is, by the name that findings use."""
    return {f"{file.name}/{name}": text for file in files for name, text in file.sources.items()}
