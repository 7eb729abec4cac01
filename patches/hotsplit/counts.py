"""Counts of routed tokens: read, checked, and brought to shares per expert.

The standard library alone, no state, no output: the command line and the installed fix use this one file.  Three JSON
shapes hold counts, each also gzipped:
A ``{"train": {"decode": {"1": [one number per expert], ...}, "prefill": {...}}, "holdout": {...}, "meta": {...}}``;
B ``{"1": {"counts": [...], "total": ...}, ...}``, prefill and decode mixed;
C ``{"live": {"decode": {"1": [...]}}, "meta": {...}}``, what a running server counted.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import stat
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

DECODE, PREFILL, MIXED = "decode", "prefill", "mixed"
PHASES = (DECODE, PREFILL, MIXED)
DEFAULT_WEIGHTS = "decode=1,prefill=0"
LIVE_WEIGHT = "live_weight"  # key in "meta" of a file that a re-rank wrote: it holds shares, not tokens
REVISION = "model_revision"  # key in "meta": the commit or hash of the weights that were counted
LARGEST_FILE = 1 << 26  # bytes, unpacked; 69 layers of 384 experts take 1 MiB
LARGEST_WEIGHT = 1e6
LARGEST_COUNT = 1 << 53  # beyond it, numbers are not exact

Table = dict[int, list[float]]  # layer -> one number per expert; layers ascending


class BadCounts(ValueError):
    """An input that cannot be used: which file, where in it, what is wrong, what to do."""

    def __init__(self, source: str, message: str, *, at: str = "", line: int = 0, hint: str = "") -> None:
        place = source + (f":{line}" if line else "") + (f", at {at}" if at else "")
        super().__init__(f"{place}: {message}" + (f" ({hint})" if hint else ""))
        self.source, self.message, self.at, self.line, self.hint = source, message, at, line, hint


class Counts(NamedTuple):
    """Counts of one recording, checked: every table has the same layers and as many experts."""

    source: str  # the file, for messages
    shape: str  # "A", "B" or "C"
    train: dict[str, Table]  # phase -> counts; the live ones of shape C
    holdout: dict[str, Table]  # held-out counts of shape A; empty if it has none
    meta: dict[str, Any]

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that were counted, ascending."""
        return tuple(next(iter(self.train.values())))

    @property
    def experts(self) -> int:
        """Experts per layer."""
        return len(next(iter(next(iter(self.train.values())).values())))

    @property
    def revision(self) -> str:
        """The model revision that "meta" names, "" if it does not."""
        return str(self.meta.get(REVISION) or "")


def read(path: str) -> Counts:
    """Read and check a file of counts, gzipped or not.

    :raises BadCounts: if it is none of the three shapes, or not sound.
    :raises OSError: if it cannot be read.
    """
    return parse(read_json(path), path)


def read_json(path: str) -> Any:
    """Read JSON strictly, gzipped or not: a regular file, no endless number, no key twice, at most LARGEST_FILE bytes.

    :raises BadCounts: if it is not that.
    :raises OSError: if it cannot be read.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise BadCounts(path, f"the key {key!r} occurs twice")
            found[key] = value
        return found

    def constant(word: str) -> float:
        raise BadCounts(path, f"{word} is not a count")

    def finite(text: str) -> float:
        value = float(text)
        if not math.isfinite(value):
            raise BadCounts(path, f"{text:.40} is not a count", hint="it is beyond the largest number")
        return value

    def at_once(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK)  # a pipe that nobody writes to would keep it waiting

    try:
        with open(path, "rb", opener=at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadCounts(path, "is not a regular file", hint="a pipe or a device: save it as a file first")
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            data = (gzip.GzipFile(fileobj=file) if packed else file).read(LARGEST_FILE + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BadCounts(path, f"broken gzip: {error}") from None
    if len(data) > LARGEST_FILE:
        raise BadCounts(path, f"more than {LARGEST_FILE} bytes", hint="is it a file of counts?")
    try:
        text = data.decode("utf-8-sig")
        return json.loads(text, object_pairs_hook=once, parse_constant=constant, parse_float=finite)
    except json.JSONDecodeError as error:
        raise BadCounts(path, f"not JSON: {error.msg}, column {error.colno}", line=error.lineno) from None
    except UnicodeDecodeError as error:
        raise BadCounts(path, f"not UTF-8, byte {error.start}") from None
    except RecursionError:
        raise BadCounts(path, "nests too deeply") from None
    except BadCounts:
        raise
    except ValueError as error:  # a number of thousands of digits
        raise BadCounts(path, f"not JSON: {error}") from None


def parse(document: Any, source: str) -> Counts:
    """Check a document of counts; ``source`` names it in messages.

    :raises BadCounts: if it is none of the three shapes, or not sound.
    """
    if not isinstance(document, dict) or not document:
        raise BadCounts(source, f"expected an object, found {_kind(document)}")
    meta = document.get("meta", {})
    if not isinstance(meta, dict):
        raise BadCounts(source, f"expected an object, found {_kind(meta)}", at="/meta")
    kinds = [key for key in ("train", "live", "hotsplit_plan") if key in document]
    if len(kinds) > 1:
        raise BadCounts(source, f"has both {kinds[0]!r} and {kinds[1]!r}")
    if kinds == ["hotsplit_plan"]:
        raise BadCounts(source, "is a plan, not counts")
    held: dict[str, Table] = {}
    if kinds:
        train = _phases(document[kinds[0]], source, f"/{kinds[0]}")
        if kinds == ["train"] and "holdout" in document:
            held = _phases(document["holdout"], source, "/holdout")
    else:
        layers = {key: each for key, each in document.items() if key != "meta"}
        if not layers or not all(isinstance(each, dict) and "counts" in each for each in layers.values()):
            keys = ", ".join(repr(key) for key in list(document)[:4])
            raise BadCounts(source, f"has the keys {keys}", hint='expected "train", "live", or layers with "counts"')
        train = {MIXED: _table({key: each["counts"] for key, each in layers.items()}, source, "", "/counts")}
        for key, each in layers.items():
            row = train[MIXED][int(key)]
            for name, sure in (("total", math.fsum(row)), ("never_routed", row.count(0))):
                if name in each and each[name] != sure:
                    raise BadCounts(source, f"{each[name]!r}, but its counts give {sure:g}", at=f"/{key}/{name}")
    tables = [*train.values(), *held.values()]
    experts = len(next(iter(tables[0].values())))
    for table in tables:
        if table.keys() != tables[0].keys():
            odd = min(table.keys() ^ tables[0].keys())
            raise BadCounts(source, f"layer {odd} is in one part and not in another")
        for layer, row in table.items():
            if len(row) != experts:
                raise BadCounts(source, f"layer {layer} has {len(row)} experts, the first one {experts}")
    for name, sure in (("experts", experts), ("layers", len(tables[0]))):
        if meta.get(name, sure) != sure:
            raise BadCounts(source, f"{meta[name]!r:.60}, but that is not what it counts", at=f"/meta/{name}")
    return Counts(source, {"train": "A", "live": "C"}[kinds[0]] if kinds else "B", train, held, meta)


def _phases(value: Any, source: str, at: str) -> dict[str, Table]:
    if not isinstance(value, dict) or not value:
        raise BadCounts(source, f"expected phases, found {_kind(value)}", at=at)
    for phase in value:
        if phase not in PHASES:
            raise BadCounts(source, f"unknown phase {phase!r}", at=at, hint=f"known: {', '.join(PHASES)}")
    return {phase: _table(value[phase], source, f"{at}/{phase}") for phase in PHASES if phase in value}


def _table(value: Any, source: str, at: str, tail: str = "") -> Table:
    if not isinstance(value, dict) or not value:
        raise BadCounts(source, f"expected layers, found {_kind(value)}", at=at)
    for key, row in value.items():
        here = f"{at}/{key}{tail}"
        if not (key.isascii() and key.isdigit() and len(key) < 7 and str(int(key)) == key):
            raise BadCounts(source, f"{key!r:.40} is no layer number", at=at)
        if not isinstance(row, list) or not row:
            raise BadCounts(source, f"expected one number per expert, found {_kind(row)}", at=here)
        for kind in set(map(type, row)) - {int, float}:
            bad = next(number for number, each in enumerate(row) if type(each) is kind)
            raise BadCounts(source, f"expected a number, found {_kind(row[bad])}", at=f"{here}/{bad}")
        if not (min(row) >= 0 and max(row) <= LARGEST_COUNT and math.isfinite(math.fsum(row))):
            bad = next(number for number, each in enumerate(row) if not 0 <= each <= LARGEST_COUNT)
            raise BadCounts(source, f"{row[bad]!r:.40} is not a count", at=f"{here}/{bad}")
    return {number: value[str(number)] for number in sorted(map(int, value))}


def _kind(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    return f"{value!r:.40}"


def parse_weights(text: str) -> dict[str, float]:
    """ "decode=1,prefill=0" as phase -> weight.

    :raises ValueError: for unknown or repeated phases, weights outside 0 to LARGEST_WEIGHT, or none above zero.
    """
    weights: dict[str, float] = {}
    for part in text.split(","):
        phase, sign, number = part.strip().partition("=")
        if phase not in PHASES or not sign or phase in weights:
            raise ValueError(f"{part!r} is not PHASE=WEIGHT with a phase of {', '.join(PHASES)}, each once")
        try:
            weights[phase] = float(number)
        except ValueError:
            raise ValueError(f"{number!r} is not a weight") from None
        if not 0 <= weights[phase] <= LARGEST_WEIGHT:
            raise ValueError(f"{number!r} is not a weight from 0 to {LARGEST_WEIGHT:g}")
    if not any(weights.values()):
        raise ValueError("no phase has a weight above zero")
    return weights


def effective(counts: Counts, weights: Mapping[str, float]) -> dict[str, float]:
    """The weights above zero; for counts without phases (shape B) "mixed" alone, unless it has a weight."""
    if list(counts.train) == [MIXED] and MIXED not in weights:
        return {MIXED: 1.0}
    return {phase: weight for phase, weight in weights.items() if weight}


def shares(counts: Counts, weights: Mapping[str, float]) -> Table:
    """Each expert's share of its layer's tokens; a layer adds up to 1 whatever was counted in it.

    Every phase is brought to 1 per layer before it is weighted, so that long prompts do not drown decode.

    :raises BadCounts: if a phase with a weight is missing, or a layer has no tokens in it.
    """
    wanted = effective(counts, weights)
    missing = [phase for phase in wanted if phase not in counts.train]
    if missing:
        hint = f"it has {', '.join(counts.train)}; give those the weights"
        raise BadCounts(counts.source, f"has no counts of {', '.join(missing)}", hint=hint)
    result: Table = {}
    whole = math.fsum(wanted.values())
    for layer in counts.layers:
        parts = []
        for phase in PHASES:
            if phase in wanted:
                row = counts.train[phase][layer]
                tokens, weight = math.fsum(row), wanted[phase] / whole  # fsum: the same on every Python, unlike sum
                if not tokens:
                    message = f"layer {layer} has no {phase} tokens at all"
                    raise BadCounts(counts.source, message, hint="count again, with traffic that reaches every layer")
                parts.append([each / tokens * weight for each in row])
        result[layer] = parts[0] if len(parts) == 1 else [math.fsum(each) for each in zip(*parts, strict=True)]
    return result


def require_model(counts: Counts, layers: Sequence[int], experts: int, revision: str = "") -> None:
    """Hold counts against a model: its MoE layers, its experts per layer, its revision where both say one.

    :raises BadCounts: at the first difference.
    """
    have, want = set(counts.layers), set(layers)
    if have != want:
        parts = [(want - have, "lacks layers"), (have - want, "counts layers that the model has not:")]
        some = [(sorted(odd), what) for odd, what in parts if odd]
        text = "; ".join(f"{what} {', '.join(map(str, odd[:8]))}{' …' * (len(odd) > 8)}" for odd, what in some)
        raise BadCounts(counts.source, text, hint="was it counted on another model, or on a part of it?")
    if counts.experts != experts:
        raise BadCounts(counts.source, f"counts {counts.experts} experts per layer, the model has {experts}")
    if revision and counts.revision and revision != counts.revision:
        raise BadCounts(counts.source, f"was counted on revision {counts.revision}, the model is {revision}")


def add(several: Sequence[Counts]) -> Counts:
    """The sum of several recordings of one model; a longer recording counts for more.

    :raises BadCounts: if they differ in phases, layers, experts or revision, or one holds shares and not tokens.
    """
    first = several[0]
    revision = first.revision
    for each in several[1:]:
        require_model(each, first.layers, first.experts, revision)
        revision = revision or each.revision
        if each.train.keys() != first.train.keys():
            names = " and ".join(f"{', '.join(one.train)} in {one.source}" for one in (first, each))
            raise BadCounts(each.source, f"different phases: {names}", hint="give files of one kind")
    if len(several) == 1:
        return first
    for each in several:
        if LIVE_WEIGHT in each.meta:
            raise BadCounts(
                each.source, "holds shares, as a re-rank writes them", hint="it cannot be added up; give it alone"
            )
    train = {phase: total([each.train[phase] for each in several]) for phase in first.train}
    phases = [phase for phase in PHASES if all(phase in each.holdout for each in several)]
    holdout = {phase: total([each.holdout[phase] for each in several]) for phase in phases}
    meta = {REVISION: revision} if revision else {}
    return Counts(" + ".join(each.source for each in several), first.shape, train, holdout, meta)


def total(tables: Sequence[Table]) -> Table:
    """The sum of tables of one shape."""
    return {
        layer: [math.fsum(each) for each in zip(*(table[layer] for table in tables), strict=True)]
        for layer in tables[0]
    }
