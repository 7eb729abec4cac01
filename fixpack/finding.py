"""What a check of a launch command finds."""

from __future__ import annotations

from typing import NamedTuple

ERROR, WARNING, NOTE = LEVELS = ("error", "warning", "note")


class Finding(NamedTuple):
    """One thing about a command line or its environment."""

    level: str  # error, warning or note
    rule: str  # the rule's name, or a word for what is wrong with the command itself
    subject: str  # the option or variable
    message: str  # what is wrong, with what was found
    reason: str = ""  # why that matters
    source: str = ""  # who says so
    remedy: str = ""  # what to write instead


def worst(findings: tuple[Finding, ...]) -> str:
    """The gravest level; "" without findings."""
    return next((level for level in LEVELS if any(each.level == level for each in findings)), "")
