"""Counts of routed tokens: three shapes, gzipped or not, and every way in which a file can be wrong."""

from __future__ import annotations

import gzip
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hotsplit_kit import rows, shape_a, shape_b, shape_c, write

from fixpack.hotsplit.payload import counts

TABLE = rows(7)


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".gz", ".txt"])
@pytest.mark.parametrize(
    ("document", "shape", "phases"),
    [
        (shape_a(TABLE, rows(8)), "A", ["decode", "prefill"]),
        (shape_a(TABLE), "A", ["decode"]),
        (shape_b(TABLE), "B", ["mixed"]),
        ({**shape_b(TABLE), "meta": {"model_revision": "r1"}}, "B", ["mixed"]),
        (shape_c(TABLE), "C", ["decode"]),
    ],
)
def test_the_three_shapes(tmp_path: Path, document: Any, shape: str, phases: list[str], suffix: str) -> None:
    found = counts.read(str(write(tmp_path / f"counts{suffix}", document)))
    assert (found.shape, list(found.train), found.layers, found.experts) == (shape, phases, (1, 2, 3, 4), 8)
    assert found.train[phases[0]] == TABLE


def test_gzip_is_told_by_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    path.write_bytes(gzip.compress(json.dumps(shape_b(TABLE)).encode()))
    assert counts.read(str(path)).train["mixed"] == TABLE


def test_layers_are_numbers_in_order(tmp_path: Path) -> None:
    document = shape_b({10: [1, 2], 9: [3, 4], 0: [5, 6]})
    assert list(counts.parse(document, "x").train["mixed"]) == [0, 9, 10]


def test_the_held_out_part_and_the_revision() -> None:
    found = counts.parse(shape_a(TABLE, holdout=rows(9), model_revision="abc"), "x")
    assert (found.holdout["decode"], found.revision) == (rows(9), "abc")
    assert counts.parse(shape_a(TABLE), "x").revision == ""


#: what is wrong -> the file's text, and the message that says so
BAD: dict[str, tuple[str | bytes, str]] = {
    "empty": (b"", "c.json:1: not JSON: Expecting value, column 1"),
    "cut off": ('{"1": {"counts": [1,\n2', "c.json:2: not JSON:"),
    "latin-1": (b'{"\xe9": 1}', "c.json: not UTF-8, byte 2"),
    "half a gzip": (gzip.compress(b"x" * 1000)[:20], "broken gzip:"),
    "a gzip with a wrong sum": (gzip.compress(b"{}")[:-8] + b"\0" * 8, "broken gzip:"),
    "too deep": ("[" * 100_000, "nests too deeply"),
    "a list": ("[1]", "expected an object, found a list of 1"),
    "nothing": ("{}", "expected an object, found an object of 0"),
    "a word": ('"x"', "expected an object, found 'x'"),
    "NaN": ('{"1": {"counts": [1, NaN]}}', "NaN is not a count"),
    "infinity": ('{"1": {"counts": [1, -Infinity]}}', "-Infinity is not a count"),
    "a key twice": ('{"1": {"counts": [1]}, "1": {"counts": [2]}}', "the key '1' occurs twice"),
    "neither shape": ('{"foo": 1, "bar": 2}', "has the keys 'foo', 'bar'"),
    "two shapes": ('{"train": {}, "live": {}}', "has both 'train' and 'live'"),
    "a plan": ('{"hotsplit_plan": 1, "hot": {}}', "is a plan, not counts"),
    "meta alone": ('{"meta": {}}', "has the keys 'meta'"),
    "meta of another kind": ('{"1": {"counts": [1]}, "meta": 3}', "at /meta: expected an object, found 3"),
    "no phase": ('{"train": {}}', "at /train: expected phases, found an object of 0"),
    "an unknown phase": ('{"train": {"decoding": {}}}', "at /train: unknown phase 'decoding' (known: decode, prefill"),
    "an empty held-out part": ('{"train": {"decode": {"1": [1]}}, "holdout": []}', "at /holdout: expected phases"),
    "no layer": ('{"live": {"decode": {}}}', "at /live/decode: expected layers"),
    "a layer's name": ('{"train": {"decode": {"layer.1": [1]}}}', "'layer.1' is no layer number"),
    "a layer with a zero in front": ('{"train": {"decode": {"01": [1]}}}', "'01' is no layer number"),
    "a layer in other digits": ('{"train": {"decode": {"١": [1]}}}', "'١' is no layer number"),
    "a negative layer": ('{"train": {"decode": {"-1": [1]}}}', "'-1' is no layer number"),
    "no expert": ('{"train": {"decode": {"1": []}}}', "at /train/decode/1: expected one number per expert"),
    "a number for a layer": ('{"train": {"decode": {"1": 5}}}', "expected one number per expert, found 5"),
    "a word for a count": (
        '{"train": {"decode": {"1": [1, "2"]}}}',
        "at /train/decode/1/1: expected a number, found '2'",
    ),
    "true for a count": ('{"1": {"counts": [1, true]}}', "at /1/counts/1: expected a number, found True"),
    "null for a count": ('{"1": {"counts": [null]}}', "at /1/counts/0: expected a number, found None"),
    "below zero": ('{"1": {"counts": [1, 2, -3]}}', "at /1/counts/2: -3 is not a count"),
    "beyond exact numbers": ('{"1": {"counts": [1, 9007199254740993]}}', "9007199254740993 is not a count"),
    "thousands of digits": ('{"1": {"counts": [' + "1" * 5000 + "]}}", "not JSON: Exceeds the limit"),
    "a layer of thousands of digits": ('{"live": {"decode": {"' + "1" * 5000 + '": [1]}}}', "is no layer number"),
    "overflowing": ('{"1": {"counts": [1, 1e400]}}', "1e400 is not a count (it is beyond the largest number)"),
    "overflowing in meta": ('{"1": {"counts": [1]}, "meta": {"x": [-1e999]}}', "-1e999 is not a count"),
    "NaN in meta": ('{"1": {"counts": [1]}, "meta": {"x": NaN}}', "NaN is not a count"),
    "layers of two lengths": (
        '{"1": {"counts": [1, 2]}, "2": {"counts": [1]}}',
        "layer 2 has 1 experts, the first one 2",
    ),
    "phases with other layers": (
        '{"train": {"decode": {"1": [1]}, "prefill": {"2": [1]}}}',
        "layer 1 is in one part and not in another",
    ),
    "a held-out part with other experts": (
        '{"train": {"decode": {"1": [1]}}, "holdout": {"decode": {"1": [1, 1]}}}',
        "layer 1 has 2 experts, the first one 1",
    ),
    "meta of other experts": (
        '{"live": {"decode": {"1": [1]}}, "meta": {"experts": 2}}',
        "at /meta/experts: 2, but that",
    ),
    "meta of other layers": (
        '{"live": {"decode": {"1": [1]}}, "meta": {"layers": 2}}',
        "at /meta/layers: 2, but that",
    ),
    "a wrong total": ('{"1": {"counts": [1, 2], "total": 4}}', "at /1/total: 4, but its counts give 3"),
    "wrong zeros": ('{"1": {"counts": [1, 0], "never_routed": 0}}', "at /1/never_routed: 0, but its counts give 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_one_clear_error(tmp_path: Path, case: str) -> None:
    text, message = BAD[case]
    path = tmp_path / "c.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(counts.BadCounts) as caught:
        counts.read(str(path))
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_a_file_that_unpacks_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "LARGEST_FILE", 1000)
    path = tmp_path / "c.json.gz"
    path.write_bytes(gzip.compress(b" " * 1001))
    with pytest.raises(counts.BadCounts, match="more than 1000 bytes"):
        counts.read(str(path))


def test_64_mib_of_text_and_no_more() -> None:
    assert counts.LARGEST_FILE == 64 << 20


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path(os.devnull)):
        with pytest.raises(counts.BadCounts, match=re.escape(f"{path}: is not a regular file (a pipe")):
            counts.read(str(path))


def test_a_missing_file_is_the_file_system_s_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        counts.read(str(tmp_path / "no"))


def test_nan_in_a_document_made_in_memory() -> None:
    with pytest.raises(counts.BadCounts, match="nan is not a count"):
        counts.parse({"1": {"counts": [1.0, math.nan]}}, "x")


def test_weights() -> None:
    assert counts.parse_weights("decode=1,prefill=0") == {"decode": 1.0, "prefill": 0.0}
    assert counts.parse_weights("prefill=0.25") == {"prefill": 0.25}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not PHASE=WEIGHT"),
        ("decode", "is not PHASE=WEIGHT"),
        ("decode=1,decode=2", "is not PHASE=WEIGHT with a phase of decode, prefill, mixed, each once"),
        ("dekode=1", "is not PHASE=WEIGHT"),
        ("decode=x", "'x' is not a weight"),
        ("decode=-1", "'-1' is not a weight"),
        ("decode=inf", "'inf' is not a weight"),
        ("decode=nan", "'nan' is not a weight"),
        ("decode=1000001", "'1000001' is not a weight from 0 to 1e+06"),
        ("decode=1e308,prefill=1e308", "'1e308' is not a weight"),
        ("decode=0,prefill=0", "no phase has a weight above zero"),
    ],
)
def test_weights_that_are_none(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        counts.parse_weights(text)


def test_shares_give_every_layer_and_phase_the_same_say() -> None:
    """Golden, by hand: prefill's thousand tokens weigh a quarter of decode's four."""
    both = counts.parse(shape_a({1: [1, 3], 2: [4, 0]}, {1: [500, 500], 2: [0, 1000]}), "x")
    assert counts.shares(both, {"decode": 1.0}) == {1: [0.25, 0.75], 2: [1.0, 0.0]}
    assert counts.shares(both, {"decode": 0.0, "prefill": 3.0}) == {1: [0.5, 0.5], 2: [0.0, 1.0]}
    mixed = counts.shares(both, {"decode": 1.0, "prefill": 0.25})
    assert mixed == {1: [pytest.approx(0.3), pytest.approx(0.7)], 2: [pytest.approx(0.8), pytest.approx(0.2)]}


def test_counts_without_phases_are_taken_as_they_are() -> None:
    found = counts.parse(shape_b({1: [1, 3]}), "x")
    assert counts.shares(found, {"decode": 1.0, "prefill": 0.0}) == {1: [0.25, 0.75]}
    assert counts.shares(found, {"mixed": 2.0}) == {1: [0.25, 0.75]}
    with pytest.raises(counts.BadCounts, match="has no counts of decode"):
        counts.shares(found, {"mixed": 1.0, "decode": 1.0})


def test_a_phase_that_is_missing_and_a_layer_without_tokens() -> None:
    found = counts.parse(shape_a({1: [1, 0], 2: [0, 0]}), "f.json")
    with pytest.raises(counts.BadCounts, match=r"f\.json: has no counts of prefill \(it has decode"):
        counts.shares(found, {"decode": 1.0, "prefill": 0.5})
    with pytest.raises(counts.BadCounts, match=r"f\.json: layer 2 has no decode tokens at all"):
        counts.shares(found, {"decode": 1.0})
    idle = counts.parse(shape_a({1: [1, 0]}, {1: [0, 0]}), "f.json")
    assert counts.shares(idle, {"decode": 1.0, "prefill": 0.0}) == {1: [1.0, 0.0]}


def test_recordings_add_up() -> None:
    one, two = shape_a(rows(1), rows(2), model_revision="r"), shape_a(rows(3), rows(4))
    whole = counts.add([counts.parse(one, "one"), counts.parse(two, "two")])
    assert whole.train["decode"][2] == [a + b for a, b in zip(rows(1)[2], rows(3)[2], strict=True)]
    assert (whole.source, whole.revision, whole.shape) == ("one + two", "r", "A")


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (shape_a(rows(3, layers=(1, 2, 3))), "two: lacks layers 4"),
        (shape_a(rows(3, layers=(1, 2, 3, 4, 5))), "two: counts layers that the model has not: 5"),
        (shape_a(rows(3, experts=9)), "two: counts 9 experts per layer, the model has 8"),
        (shape_a(rows(3), model_revision="s"), "two: was counted on revision s, the model is r"),
        (shape_a(rows(3), rows(4)), "different phases: decode in one and decode, prefill in two"),
        (shape_b(rows(3)), "different phases: decode in one and mixed in two"),
        (shape_a(rows(3), live_weight=1.0), "holds shares, as a re-rank writes them"),
    ],
)
def test_recordings_that_do_not_add_up(second: Any, message: str) -> None:
    first = counts.parse(shape_a(rows(1), model_revision="r"), "one")
    with pytest.raises(counts.BadCounts) as caught:
        counts.add([first, counts.parse(second, "two")])
    assert message in str(caught.value)


def test_the_third_recording_s_revision_is_held_against_the_second_s() -> None:
    several = [shape_a(rows(1)), shape_a(rows(2), model_revision="r"), shape_a(rows(3), model_revision="s")]
    with pytest.raises(counts.BadCounts, match="was counted on revision s, the model is r"):
        counts.add([counts.parse(each, "x") for each in several])
