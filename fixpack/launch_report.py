"""What a check found, for people and for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fixpack.finding import ERROR, LEVELS, Finding
from fixpack.text import plural

SCHEMA_VERSION = 1


def exit_code(findings: Sequence[Finding], strict: bool) -> int:
    """1 if something is an error, or with ``strict`` more than a note."""
    grave = LEVELS[:2] if strict else (ERROR,)
    return int(any(each.level in grave for each in findings))


def as_text(profile: str, findings: Sequence[Finding], checked: int, sources: Mapping[str, str]) -> str:
    """Every finding with its rule, reason and remedy, what its sources are, and a last line that counts them."""
    lines = []
    for each in findings:
        lines.append(f"{each.level}: {each.message} [{each.rule}]")
        if each.reason:
            lines.append(f"  why: {each.reason}" + (f" ({each.source})" if each.source else ""))
        if each.remedy:
            lines.append(f"  next: {each.remedy}")
    lines += [f"source {name}: {sources[name]}" for name in dict.fromkeys(each.source for each in findings) if name]
    counts = [plural(sum(each.level == level for each in findings), level) for level in LEVELS]
    told = "the command is as the rules want it" if not findings else ", ".join(counts)
    lines.append(f"{profile}: {plural(checked, 'rule')} checked: {told}")
    return "\n".join(lines)


def as_json(profile: str, model: str, findings: Sequence[Finding], checked: int, code: int) -> dict[str, Any]:
    """The same for machines."""
    return {
        "schema_version": SCHEMA_VERSION,
        "profile": profile,
        "model": model or None,
        "rules_checked": checked,
        "exit_code": code,
        "findings": [each._asdict() for each in findings],
    }
