"""What the prover found, as a table for people and as a record for machines."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Sequence
from typing import Any

from fixpack import __version__
from fixpack.model import Registry
from fixpack.prove import ProfileResult, RunResult, Verdict
from fixpack.text import plural

SCHEMA_VERSION = 1
HEADINGS = ("fix", "stock red", "guards", "alone green", "all green", "test seconds", "result")

#: Distributions whose versions a proof depends on.
_RECORDED = ("torch", "numpy", "transformers", "pytest", "xgrammar", "msgspec")


def counts(results: Sequence[ProfileResult]) -> dict[str, int]:
    """Verdicts by status, over all profiles."""
    statuses = [verdict.status for result in results for verdict in result.verdicts]
    found = {status: statuses.count(status) for status in ("proven", "superseded", "skipped", "failed")}
    return {status: count for status, count in found.items() if count or status != "superseded"}


def last_line(results: Sequence[ProfileResult]) -> str:
    """``5 proven, 0 skipped, 0 failed``."""
    return ", ".join(f"{number} {status}" for status, number in counts(results).items())


def row(verdict: Verdict) -> tuple[str, ...]:
    """The cells of one fix, in the order of ``HEADINGS``."""
    if verdict.status == "skipped":
        return (verdict.fix, "-", "-", "-", "-", "-", verdict.status)
    pairs = (verdict.red, verdict.guards, verdict.alone, verdict.together)
    return (verdict.fix, *(f"{good}/{of}" for good, of in pairs), f"{verdict.test_seconds:.1f}", verdict.status)


def title(registry: Registry, result: ProfileResult) -> str:
    """One line that says on what the fixes were proven."""
    refs = ", ".join(f"{release.ref} ({release.commit[:9]})" for release in registry.profile_releases(result.profile))
    return f"{result.profile.name}: {refs}"


def plain_table(rows: Sequence[Sequence[str]]) -> str:
    """An aligned table of text."""
    widths = [max(len(cell) for cell in column) for column in zip(HEADINGS, *rows, strict=True)]
    lines = [HEADINGS, *rows]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def reasons(result: ProfileResult) -> list[str]:
    """Why fixes failed, one line each; for a missing source the command once."""
    lines = [f"  {line}" for line in result.missing]
    if lines:
        lines.insert(0, "skipped, because upstream sources are not in the cache; fetch them with")
    for verdict in result.verdicts:
        if verdict.status == "failed":
            lines.append(f"{verdict.fix}:")
            lines += [f"  - {reason}" for reason in verdict.reasons]
    return lines


def run_line(result: RunResult) -> str:
    """One line of progress."""
    outcomes = [test.outcome for test in result.tests]
    told = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in sorted(set(outcomes))) or "no tests"
    trouble = f", {plural(len(result.troubles), 'problem')}" if result.troubles else ""
    return f"{result.run.name}: {told}{trouble} ({result.duration:.0f} s)"


def record(registry: Registry, results: Sequence[ProfileResult], started: str, duration: float) -> dict[str, Any]:
    """The JSON record: versions, hashes, outcomes, durations."""
    return {
        "schema_version": SCHEMA_VERSION,
        "fixpack": __version__,
        "python": platform.python_version(),
        "platform": f"{sys.platform}-{platform.machine()}",
        "packages": _versions(),
        "started": started,
        "duration": round(duration, 1),
        "profiles": [_profile(registry, result) for result in results],
        "counts": counts(results),
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in _RECORDED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = ""
    return found


def _profile(registry: Registry, result: ProfileResult) -> dict[str, Any]:
    return {
        "profile": result.profile.name,
        "releases": {
            release.ref: {"version": release.version, "commit": release.commit}
            for release in registry.profile_releases(result.profile)
        },
        "missing": list(result.missing),
        "fixes": [
            {**verdict._asdict(), "revision": registry.fixes[verdict.fix].revision} for verdict in result.verdicts
        ],
        "runs": [
            {
                "name": run.run.name,
                "applied": list(run.run.fixes),
                "proofs": list(run.run.proofs),
                "trees": run.trees,
                "problems": [trouble.text for trouble in run.troubles],
                "duration": run.duration,
                "tests": [
                    {
                        "nodeid": test.nodeid,
                        "outcome": test.outcome,
                        "text": test.text,
                        "duration": test.duration,
                    }
                    for test in run.tests
                ],
            }
            for run in result.runs
        ],
    }
