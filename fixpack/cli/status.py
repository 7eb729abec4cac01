"""``fixpack status``: which fixes are in a target, and why each is in its state."""

from __future__ import annotations

import argparse
import json
from typing import Any

from fixpack.cli import target_options
from fixpack.outcome import Place
from fixpack.survey import FixView, Survey

#: state -> letter
LETTERS = {
    "applied": "=",
    "pristine": "+",
    "stale": "~",
    "superseded": "^",
    "partly-superseded": "^",
    "foreign": "!",
    "missing": "?",
}

#: what the letters mean, for the legend
MEANINGS = {
    "applied": "in place, every byte as proven",
    "pristine": "not in place; apply can bring it in",
    "stale": "in place in an older revision",
    "superseded": "upstream has it",
    "partly-superseded": "upstream has a part of it",
    "foreign": "the bytes are not the pinned ones",
    "missing": "its package or file is not there",
}

#: what an opt-in fix that is not in place is called all the same
_UPSTREAM = ("superseded", "partly-superseded")

HELP = "the state of every fix in an install, and why"


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of status."""
    parser.epilog = (
        "exit codes: 0 every fix is in place, absent, or superseded; 1 anything else. An opt-in fix that is not in "
        "place never counts, whatever its file is like."
    )
    target_options.add(parser, profile="the profile (default: the one whose pinned files are there)")
    parser.add_argument("--json", action="store_true", help="report as JSON on stdout")


def run(args: argparse.Namespace) -> int:
    """Print the states; returns 0 if all are sound."""
    from fixpack.claim import settle
    from fixpack.confirm import places
    from fixpack.registry import load
    from fixpack.survey import survey

    root = target_options.registry_root(args)
    locked, target = target_options.open_locked(args, root)
    notes = settle(target, locked)
    found = survey(load(root), locked, target)
    where = places(locked, target)
    code = 0 if found.sound else 1
    if args.json:
        print(json.dumps(as_json(found, where, notes, code), indent=1))
    else:
        print(as_text(found, where, notes))
    return code


def as_json(found: Survey, where: tuple[Place, ...], notes: tuple[str, ...], code: int) -> dict[str, Any]:
    """The report for machines."""
    return {
        "schema_version": 1,
        "exit_code": code,
        "profile": found.profile,
        "places": [place._asdict() for place in where],
        "fixes": [{**fix._asdict(), "problems": [each._asdict() for each in fix.problems]} for fix in found.fixes],
        "files": [file._asdict() for file in found.files],
        "receipts": [each._asdict() for each in found.receipts],
        "foreign": list(found.foreign),
        "notes": list(notes),
    }


def as_text(found: Survey, where: tuple[Place, ...], notes: tuple[str, ...]) -> str:
    """The report for people."""
    lines = [f"note: {note}" for note in notes]
    for place in where:
        version = f" {place.version}" if place.version else ""
        lines.append(f"{place.distribution}{version} in {place.root}  [{place.how}]")
    width = max(len(fix.id) for fix in found.fixes)
    for fix in found.fixes:
        lines.append(f"  {_letter(fix)} {fix.id:<{width}}  r{fix.revision}  {fix.title}")
        for problem in fix.problems:
            at = f"{problem.file}:{problem.line}: " if problem.line else f"{problem.file}: " if problem.file else ""
            lines.append(f"      {at}{problem.message} [{problem.code}]")
    lines += [f"  # another layer changed {file}, outside of every fixed scope" for file in found.foreign]
    for each in found.receipts:
        when = f", of {each.time}" if each.time else ""
        lines.append(f"receipt of {each.distribution}: {each.state}{when}  {each.path}")
    counts: dict[str, int] = {}
    for fix in found.fixes:
        word = "not in place" if _letter(fix) == "-" and fix.state != "pristine" else fix.state
        counts[word] = counts.get(word, 0) + 1
    lines.append(f"{found.profile}: " + ", ".join(f"{count} {state}" for state, count in counts.items()))
    signs = {_letter(fix): _meaning(fix) for fix in found.fixes}
    lines.append("  " + "; ".join(f"{sign} {meaning}" for sign, meaning in signs.items()))
    return "\n".join(lines)


def _letter(fix: FixView) -> str:
    return "-" if fix.off and fix.state not in _UPSTREAM else LETTERS[fix.state]


def _meaning(fix: FixView) -> str:
    return "opt-in, not in place" if _letter(fix) == "-" else MEANINGS[fix.state]
