#!/usr/bin/env python3
"""Mutants of the real upstream files: is each one refused, or fixed exactly where the fix belongs?

    python benchmarks/mutants.py [--profile gaudi2-v0.26.0] [--count 20000] [--peers 2000] [--seed 1]

Each mutant is a pinned file after one to three random changes of lines: edits, deletions, copies, moves,
swaps, other indentation, a function copied or renamed; half of them near an anchor.  Every line keeps its
identity, so the one right result is known: the fixes' blocks at the original lines, if those are whole.

- "fixpack": what the engine does.  A mutant is not the pinned file, so it is refused, whatever it looks like.
- "anchors alone": the same anchors without the hashes, to see what they are worth by themselves.  Right is
  also what a second, slow implementation of "exactly once in the scope of that name" says, on Python's parser.
- "confirm": the fixed file is mutated; confirmed must mean that every fixed scope is as it was.
- patch, patch --fuzz=0 and git apply get the same change as a unified diff, on a part of the mutants
  (``--peers``), because each is a process.  Placing a hunk elsewhere or taking a mutant whose lines are
  gone is wrong.

Exit code 1 if the engine is wrong once.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fixpack import index, layers, lock, sources  # noqa: E402
from fixpack.compose import check_syntax, compose, scopes, strip  # noqa: E402
from fixpack.difference import unified  # noqa: E402
from fixpack.errors import MismatchError, Problem  # noqa: E402
from fixpack.model import Fix, Registry, Release  # noqa: E402
from fixpack.payload import render  # noqa: E402
from fixpack.registry import load  # noqa: E402
from fixpack.scope import find_scope, line_at, locate  # noqa: E402


class Line(NamedTuple):
    """A line of a mutant: its text and which line of the original it is, -1 for none."""

    origin: int
    text: bytes


class Subject(NamedTuple):
    """One real file, and what is known of it."""

    registry: Registry
    release: Release
    lock: lock.Lock
    path: str
    base: bytes
    fixed: bytes
    fixes: list[Fix]  # each with its edits of this file only
    blocks: list[tuple[int, int, bytes]]  # original lines [start, end) become this block
    anchors: list[tuple[int, int]]  # the lines of each anchor
    near: list[int]  # lines around which half of the mutations happen
    guarded: list[tuple[int, int]]  # the lines of each fixed scope in the fixed file
    diff: str


def subjects(profile: str) -> list[Subject]:
    """Every pinned file that the profile's default fixes change."""
    root = str(ROOT)
    locked = lock.find(root, profile)
    registry = index.restore(root, locked)
    whole = load(root)
    found = []
    for release in registry.profile_releases(registry.profiles[locked["profile"]]):
        for path in release.files:
            fixes = [
                layers.only(registry.fixes[name], release, path) for name in registry.profiles[locked["profile"]].fixes
            ]
            fixes = [fix for fix in fixes if fix.edits_for(release)]
            if not fixes:
                continue
            tree = sources.tree(whole.releases[release.ref])
            base = Path(tree, path).read_bytes()
            fixed = compose({path: base}, release, fixes)[path]
            blocks, anchors = _blocks(base, release, path, fixes)
            guarded = []
            for scope in {scope for fix in fixes for scope in scopes(release, [fix], path)}:
                place = find_scope(fixed, scope)
                guarded.append((line_at(fixed, place.start) - 1, line_at(fixed, place.end - 1)))
            near = [line for start, end in anchors for line in range(max(start - 40, 0), end + 40)]
            diff = unified(path, base, fixed)
            found.append(
                Subject(registry, release, locked, path, base, fixed, fixes, blocks, anchors, near, guarded, diff)
            )
    return found


def _blocks(
    base: bytes, release: Release, path: str, fixes: Sequence[Fix]
) -> tuple[list[tuple[int, int, bytes]], list[tuple[int, int]]]:
    blocks, anchors = [], []
    for fix in fixes:
        for edit in fix.edits_for(release):
            anchor = release.files[path].anchors[edit.anchor]
            place = locate(base, release.files[path], anchor, fix.id)
            assert not isinstance(place, Problem)
            start, end = base.count(b"\n", 0, place.start), base.count(b"\n", 0, place.end)
            anchors.append((start, end))
            at = {"insert-before": (start, start), "insert-after": (end, end)}.get(edit.op, (start, end))
            blocks.append((*at, render(fix, edit, place.indent)))
    return sorted(blocks), anchors


# -- mutations --------------------------------------------------------------------------------------------------------


def mutate(lines: list[Line], near: Sequence[int], chance: random.Random) -> list[Line]:
    """One to three random changes."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        at = min(chance.choice(near) if chance.random() < 0.5 else chance.randrange(len(lines)), len(lines) - 1)
        lines = chance.choice(MUTATIONS)(lines, at, chance)
    return lines


def _edit(lines: list[Line], at: int, chance: random.Random) -> list[Line]:
    text = bytearray(lines[at].text or b" ")
    where = chance.randrange(len(text))
    text[where] = chance.choice(b"abcxyz_01 ()=")
    return [*lines[:at], Line(-1, bytes(text)), *lines[at + 1 :]]


def _word(lines: list[Line], at: int, chance: random.Random) -> list[Line]:
    words = lines[at].text.split(b" ")
    words[chance.randrange(len(words))] = chance.choice((b"value", b"self", b"i", b"not", b"None"))
    return [*lines[:at], Line(-1, b" ".join(words)), *lines[at + 1 :]]


def _delete(lines: list[Line], at: int, chance: random.Random) -> list[Line]:
    return [*lines[:at], *lines[at + chance.randint(1, 5) :]]


def _copied(lines: list[Line], start: int, end: int) -> list[Line]:
    return [Line(-1, line.text) for line in lines[start:end]]


def _copy(lines: list[Line], at: int, chance: random.Random) -> list[Line]:
    block = _copied(lines, at, at + chance.randint(1, 40))
    to = chance.choice((at, at + len(block), chance.randrange(len(lines))))
    return [*lines[:to], *block, *lines[to:]]


def _move(lines: list[Line], at: int, chance: random.Random) -> list[Line]:
    end = at + chance.randint(1, 40)
    block, rest = lines[at:end], [*lines[:at], *lines[end:]]
    to = chance.choice((max(at - chance.randint(1, 30), 0), chance.randrange(len(rest) + 1)))
    return [*rest[:to], *block, *rest[to:]]


def _swap(lines: list[Line], at: int, chance: random.Random) -> list[Line]:
    pair = lines[at : at + 2]
    return [*lines[:at], *reversed(pair), *lines[at + 2 :]]


def _indent(lines: list[Line], at: int, chance: random.Random) -> list[Line]:
    end = at + chance.randint(1, 12)
    return [*lines[:at], *(Line(-1, b"    " + line.text) for line in lines[at:end]), *lines[end:]]


def _function(lines: list[Line], at: int, chance: random.Random) -> list[Line]:
    """Copy the function around a line behind itself, under its own or another name, and perhaps rename the original."""
    start = at
    while start and not lines[start].text.lstrip().startswith((b"def ", b"async def ")):
        start -= 1
    depth = len(lines[start].text) - len(lines[start].text.lstrip())
    end = start + 1
    while end < len(lines):
        text = lines[end].text
        if text.strip() and len(text) - len(text.lstrip()) <= depth:
            break
        end += 1
    block = _copied(lines, start, end)
    original = list(lines[start:end])
    kind = chance.randrange(4)
    if kind in (1, 3):
        block[0] = Line(-1, block[0].text.replace(b"def ", b"def old_", 1))
    if kind in (2, 3):
        original[0] = Line(-1, original[0].text.replace(b"def ", b"def new_", 1))
    if chance.random() < 0.5:  # the copy or the original differs in one line
        changed = block if chance.random() < 0.5 else original
        spot = chance.randrange(len(changed))
        changed[spot] = Line(-1, changed[spot].text + b"  # changed")
    both = [original, block] if chance.random() < 0.5 else [block, original]
    return [*lines[:start], *both[0], *both[1], *lines[end:]]


MUTATIONS: tuple[Callable[[list[Line], int, random.Random], list[Line]], ...] = (
    *(_edit, _word, _delete, _copy, _copy, _move, _move, _swap, _indent, _function, _function),
)


def as_lines(data: bytes) -> list[Line]:
    """A file as lines with their identity; the last one is empty where the file ends with a newline."""
    return [Line(number, text) for number, text in enumerate(data.split(b"\n"))]


def as_bytes(lines: Sequence[Line]) -> bytes:
    return b"\n".join(line.text for line in lines)


# -- what is right ----------------------------------------------------------------------------------------------------


def truth(subject: Subject, lines: Sequence[Line]) -> bytes | None:
    """The mutant with every block at its original lines, None if an anchor's lines are not whole any more."""
    where = {line.origin: number for number, line in enumerate(lines) if line.origin >= 0}
    for start, end in subject.anchors:
        spots = [where.get(number, -1) for number in range(start, end)]
        if -1 in spots or spots != list(range(spots[0], spots[0] + len(spots))):
            return None
    out = [line.text for line in lines]
    placed = []
    for start, end, block in subject.blocks:
        first = where[start] if start < end or start in where else where[start - 1] + 1
        anchored = any(low <= start < high for low, high in subject.anchors)
        if start == end and not anchored:  # inserted behind its anchor
            first = where[start - 1] + 1
        placed.append((first, first + end - start, block))
    for first, last, block in sorted(placed, reverse=True):
        out[first:last] = block.split(b"\n")[:-1]
    return b"\n".join(out)


def intact(subject: Subject, lines: Sequence[Line]) -> bool:
    """Whether every fixed scope of the fixed file is whole in its mutant."""
    where = {line.origin: number for number, line in enumerate(lines) if line.origin >= 0}
    for start, end in subject.guarded:
        spots = [where.get(number, -1) for number in range(start, end)]
        if -1 in spots or spots != list(range(spots[0], spots[0] + len(spots))):
            return False
    return True


def _definitions(body: Sequence[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement
            continue
        for field in ("body", "orelse", "finalbody", "handlers"):
            for child in getattr(statement, field, []):
                yield from _definitions(child.body if isinstance(child, ast.ExceptHandler) else [child])


def named(tree: ast.Module, dotted: str) -> tuple[int, int] | None:
    """The lines of the one definition of that name, by Python's own parser; None if there is not exactly one."""
    body: Sequence[ast.stmt] = tree.body
    span = None
    for name in dotted.split("."):
        found = [each for each in _definitions(body) if each.name == name]
        if len(found) != 1:
            return None
        body, span = found[0].body, (found[0].lineno - 1, found[0].end_lineno or 0)
    return span


def by_the_book(subject: Subject, data: bytes) -> bytes | None:
    """A second, slow implementation of what the anchors mean, where identity and name disagree."""
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError):
        return None
    lines = data.split(b"\n")
    places = []
    for fix in subject.fixes:
        for edit in fix.edits_for(subject.release):
            anchor = subject.release.files[subject.path].anchors[edit.anchor]
            span = named(tree, anchor.within) if anchor.within else (0, len(lines))
            if span is None:
                return None
            wanted = anchor.text.encode().split(b"\n")
            spots = []
            for at in range(span[0], span[1] - len(wanted) + 1):
                indent = lines[at][: len(lines[at]) - len(lines[at].lstrip(b" "))]
                if lines[at : at + len(wanted)] == [indent + each if each else each for each in wanted]:
                    spots.append((at, at + len(wanted), indent))
            if len(spots) != 1:
                return None
            start, end, indent = spots[0]
            at = {"insert-before": (start, start), "insert-after": (end, end)}.get(edit.op, (start, end))
            places.append((*at, render(fix, edit, indent)))
    for start, end, block in sorted(places, reverse=True):
        lines[start:end] = block.split(b"\n")[:-1]
    return b"\n".join(lines)


def intact_by_name(subject: Subject, data: bytes) -> bool:
    """The same as ``intact`` by name and bytes, where a change put the very same lines there."""
    try:
        tree, fixed = ast.parse(data), ast.parse(subject.fixed)
    except (SyntaxError, ValueError):
        return False
    lines, old = data.split(b"\n"), subject.fixed.split(b"\n")
    for scope in {scope for fix in subject.fixes for scope in scopes(subject.release, [fix], subject.path)}:
        here, there = named(tree, scope), named(fixed, scope)
        if here is None or there is None or lines[slice(*here)] != old[slice(*there)]:
            return False
    return True


# -- contenders -------------------------------------------------------------------------------------------------------


def engine(subject: Subject, data: bytes) -> bytes | None:
    """The engine's decision on one file, as ``look_at`` and ``make_plan`` take it."""
    pinned = subject.release.files[subject.path].sha256
    if lock.sha256(data) != pinned:
        stripped = strip(subject.path, data, subject.release, subject.registry.fixes)
        if stripped.problems or stripped.stale or lock.sha256(stripped.base) != pinned:
            return None
        data = stripped.base
    return compose({subject.path: data}, subject.release, subject.fixes)[subject.path]


def anchors_alone(subject: Subject, data: bytes) -> bytes | None:
    """The anchors and the syntax check, but no hash."""
    try:
        made = compose({subject.path: data}, subject.release, subject.fixes)[subject.path]
    except MismatchError:
        return None
    edited = scopes(subject.release, subject.fixes, subject.path)
    return None if check_syntax(subject.path, made, edited) else made


def confirmed(subject: Subject, data: bytes) -> bool:
    """Whether a file with another layer's changes is confirmed."""
    stripped = strip(subject.path, data, subject.release, subject.registry.fixes)
    names = [fix.id for fix in subject.fixes]
    if stripped.problems or stripped.stale or any(name not in stripped.applied for name in names):
        return False
    verdict = layers.judge(subject.registry, subject.release, subject.lock, subject.path, data, stripped)
    return not any(verdict.values()) and check_syntax(subject.path, data) is None


PEERS = {
    "patch": ["patch", "-p1", "-f", "-s", "--no-backup-if-mismatch", "-r", "-", "-i"],
    "patch --fuzz=0": ["patch", "-p1", "-f", "-s", "--fuzz=0", "--no-backup-if-mismatch", "-r", "-", "-i"],
    "git apply": ["git", "apply"],
}


def peer(command: Sequence[str], subject: Subject, data: bytes, folder: Path) -> tuple[bytes | None, bool]:
    """A tool's result, None if it refused; and whether it left something half done when it refused."""
    full = folder / subject.path
    full.parent.mkdir(parents=True, exist_ok=True)
    full.write_bytes(data)
    (folder / "fix.diff").write_text(subject.diff, encoding="utf-8", errors="surrogateescape")
    env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent), "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"}
    done = subprocess.run([*command, "fix.diff"], cwd=folder, capture_output=True, check=False, env=env)
    result = full.read_bytes()
    return (None, result != data) if done.returncode else (result, False)


class Tally:
    """What one contender did."""

    def __init__(self, name: str) -> None:
        self.name, self.count, self.refused, self.right, self.wrong, self.half = name, 0, 0, 0, 0, 0

    def add(self, result: bytes | None, right: bytes | None, half: bool = False) -> None:
        self.count += 1
        if result is None:
            self.refused += 1
            self.half += half
        elif result == right:
            self.right += 1
        else:
            self.wrong += 1


def campaign(profile: str, count: int, peers: int, seed: int) -> list[Tally]:
    """Run everything; the tallies in the order of the report."""
    chance = random.Random(seed)
    files = subjects(profile)
    if not files:
        sys.exit(f"{profile} changes no file")
    lines_of = [(as_lines(each.base), as_lines(each.fixed)) for each in files]
    tallies = {name: Tally(name) for name in ("fixpack", "anchors alone", "confirm", *PEERS)}
    every = max(count // peers, 1) if peers else 0
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        for number in range(count):
            subject = files[number % len(files)]
            stock, fixed = lines_of[number % len(files)]
            lines = mutate(stock, subject.near, chance)
            data = as_bytes(lines)
            alone = anchors_alone(subject, data)
            asked = alone is not None or bool(every and number % every == 0)
            right = subject.fixed if data == subject.base else truth(subject, lines) if asked else None
            tallies["fixpack"].add(engine(subject, data), right)
            same = alone is None or alone == right or alone != by_the_book(subject, data)
            tallies["anchors alone"].add(alone, right if same else alone)
            layered = mutate(fixed, subject.near, chance)
            said = confirmed(subject, as_bytes(layered))
            whole = not said or intact(subject, layered) or intact_by_name(subject, as_bytes(layered))
            tallies["confirm"].add(b"" if said else None, b"" if whole else b"not whole")
            if every and number % every == 0:
                for name, command in PEERS.items():
                    tallies[name].add(*_with_right(peer(command, subject, data, Path(folder)), right))
    return list(tallies.values())


def _with_right(found: tuple[bytes | None, bool], right: bytes | None) -> tuple[bytes | None, bytes | None, bool]:
    return found[0], right, found[1]


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--profile", default="gaudi2-v0.26.0")
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--peers", type=int, default=2000, help="mutants that the other tools get too; 0 for none")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    start = time.monotonic()
    tallies = campaign(args.profile, args.count, args.peers, args.seed)
    print(f"{args.profile}, seed {args.seed}, {args.count} mutants, {time.monotonic() - start:.0f} s")
    print(f"  {'':<16}{'mutants':>9}{'refused':>9}{'right':>9}{'wrong':>9}  refused, half done")
    for each in tallies:
        print(f"  {each.name:<16}{each.count:>9}{each.refused:>9}{each.right:>9}{each.wrong:>9}{each.half:>9}")
    if args.json:
        Path(args.json).write_text(json.dumps([vars(each) for each in tallies], indent=1) + "\n", encoding="utf-8")
    return 1 if any(each.wrong for each in tallies if each.name in ("fixpack", "confirm")) else 0


if __name__ == "__main__":
    sys.exit(main())
