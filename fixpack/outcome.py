"""What an apply found and did, as one record, and the two ways to say it."""

from __future__ import annotations

from typing import Any, NamedTuple

from fixpack.errors import Problem
from fixpack.text import plural

#: state -> letter in the text report
LETTERS = {
    "applied": "=",
    "written": "+",
    "pristine": "+",
    "foreign": "!",
    "stale": "~",
    "missing": "?",
}


class FixState(NamedTuple):
    """One fix in the target."""

    id: str
    revision: int
    title: str
    state: str  # applied | written | pristine | stale | foreign | missing
    opt_in: bool
    asked: bool  # False: it is in place, but this command did not name it
    files: tuple[str, ...]


class FileState(NamedTuple):
    """One file of the target."""

    distribution: str
    path: str  # relative
    real: str  # resolved
    base_sha256: str  # "" for an added file
    result_sha256: str
    changed: bool  # whether this run wrote it (or would)


class Place(NamedTuple):
    """A distribution as it was found."""

    distribution: str
    release: str
    root: str
    how: str
    version: str
    commit: str


class Outcome(NamedTuple):
    """The whole run."""

    action: str  # applied | confirmed | would-apply | not-applied | refused
    profile: str
    fixes: tuple[FixState, ...]
    files: tuple[FileState, ...]
    places: tuple[Place, ...]
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()  # files that another layer changed outside of every fixed scope
    records: tuple[str, ...] = ()  # receipts and RECORDs that this run wrote (or would)

    @property
    def exit_code(self) -> int:
        """0 if every fix is in (or would be, on a dry run), else 1."""
        return 1 if self.action in ("refused", "not-applied") else 0


def as_text(outcome: Outcome) -> str:
    """The report for people."""
    lines = [f"note: {note}" for note in outcome.notes]
    for place in outcome.places:
        version = f" {place.version}" if place.version else ""
        commit = f" (commit {place.commit[:12]})" if place.commit else ""
        lines.append(f"{place.distribution}{version}{commit} in {place.root}  [{place.how}]")
    width = max((len(fix.id) for fix in outcome.fixes), default=0)
    for fix in outcome.fixes:
        note = "" if fix.asked else "  (in place, not asked for)"
        lines.append(f"  {LETTERS.get(fix.state, ' ')} {fix.id:<{width}}  r{fix.revision}  {fix.title}{note}")
    lines += [f"  # another layer changed {file}, outside of every fixed scope" for file in outcome.foreign]
    done = sum(file.changed for file in outcome.files)
    if outcome.records and (outcome.action != "not-applied" or not done):
        tense = {"applied": "written", "not-applied": "out of date"}.get(outcome.action, "to be written")
        lines += [f"  record {tense}: {path}" for path in outcome.records]
    fixes = plural(len(outcome.fixes), "fix")
    files = plural(len(outcome.files), "file")
    changed = plural(done, "file")
    last = {
        "applied": f"applied: {fixes} in {files}; {changed} written, each read back with the expected sha256",
        "confirmed": f"confirmed: {fixes} in {files}, every byte of them as proven; nothing written",
        "would-apply": f"would apply: {fixes} in {files}; {changed} would be written, nothing was",
        "not-applied": f"not applied: {done} of {files} lack what an apply brings in",
    }
    if outcome.foreign:
        last["confirmed"] = (
            f"confirmed: {fixes} in {files}, every region and fixed scope as proven, but "
            f"{plural(len(outcome.foreign), 'file')} with foreign changes; nothing written"
        )
    lines.append(f"{outcome.profile}: {last.get(outcome.action, outcome.action)}")
    return "\n".join(lines)


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The report for machines; ``schema_version`` changes when a field's meaning does."""
    return {
        "schema_version": 1,
        "action": outcome.action,
        "exit_code": outcome.exit_code,
        "profile": outcome.profile,
        "places": [place._asdict() for place in outcome.places],
        "fixes": [fix._asdict() for fix in outcome.fixes],
        "files": [file._asdict() for file in outcome.files],
        "problems": problems_json(outcome.problems),
        "notes": list(outcome.notes),
        "foreign": list(outcome.foreign),
        "records": list(outcome.records),
    }


def problems_json(problems: tuple[Problem, ...]) -> list[dict[str, Any]]:
    """Problems as plain data."""
    return [problem._asdict() for problem in problems]


def problem_text(problem: Problem) -> str:
    """One problem: which fix and file, what was expected and found, what to do next."""
    where = problem.file + (f":{problem.line}" if problem.line else "")
    head = ": ".join(part for part in (problem.fix, where) if part)
    lines = [f"error: {head + ': ' if head else ''}{problem.message} [{problem.code}]"]
    if problem.expected:
        lines.append(f"  expected  {problem.expected}")
    if problem.found:
        lines.append(f"  found     {problem.found}")
    if problem.diff:
        at = f" at line {problem.line}" if problem.line else ""
        lines.append(f"  nearest{at}:")
        lines += [f"    {line}" for line in problem.diff]
    if problem.hint:
        lines.append(f"  next: {problem.hint}")
    return "\n".join(lines)
