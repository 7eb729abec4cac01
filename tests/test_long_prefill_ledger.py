"""The debt ledger of vllm-long-prefill-share and its settings, alone: no vLLM, no torch."""

from __future__ import annotations

import ast
import importlib.util
import random
import sys
from collections import deque
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import REPO

PAYLOADS = REPO / "patches" / "vllm-long-prefill-share"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, PAYLOADS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # NamedTuple asks for it
    spec.loader.exec_module(module)
    return module


ledgers = load("long_prefill_ledger")
settings = load("long_prefill_settings")
Kind, Ledger = ledgers.Kind, ledgers.Ledger


def step(ledger: Any, kind: Any, begin: float, end: float, others: bool = True) -> Any:
    """A step that is scheduled and done before the next one."""
    key = object()
    ledger.begin(key, kind, others, False, begin)
    return ledger.end(key, end)


def test_standard_library_only() -> None:
    for name in ("long_prefill_ledger", "long_prefill_settings"):
        tree = ast.parse((PAYLOADS / f"{name}.py").read_text())
        found = {each.module for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)}
        found |= {alias.name for each in ast.walk(tree) if isinstance(each, ast.Import) for alias in each.names}
        assert {str(each).partition(".")[0] for each in found} <= sys.stdlib_module_names


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, float("nan")])
def test_no_share(share: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        Ledger(share, True)


def test_chunk_is_paid_back() -> None:
    """At 0.5: 1 s of chunk, of which the others got 0.1 s' worth, and then 0.8 s of theirs."""
    ledger = Ledger(0.5, True)
    step(ledger, Kind.DECODE, 0.0, 0.1)
    assert (ledger.decode_seconds, ledger.debt, ledger.due) == (0.1, -0.1, False)
    step(ledger, Kind.CHUNK, 0.1, 1.1)
    assert ledger.debt == pytest.approx(0.7)  # 0.1 s of credit
    now = 1.1
    while ledger.defers(lambda: True):
        step(ledger, Kind.DECODE, now, now + 0.1)
        now += 0.1
    assert now == pytest.approx(1.9, abs=0.11)
    assert not ledger.due


def test_credit_is_one_step() -> None:
    """A quiet time buys no burst of chunks."""
    ledger = Ledger(0.5, True)
    for number in range(100):
        step(ledger, Kind.DECODE, number, number + 1.0)
    assert ledger.debt == -ledger.decode_seconds == -1.0


def test_idle_time_does_not_count() -> None:
    ledger = Ledger(0.5, True)
    step(ledger, Kind.CHUNK, 0.0, 1.0)
    assert step(ledger, Kind.DECODE, 500.0, 500.25).seconds == 0.25


def test_nobody_left() -> None:
    ledger = Ledger(0.5, True)
    step(ledger, Kind.CHUNK, 0.0, 1.0)
    assert not ledger.defers(lambda: False)
    assert ledger.debt == 0.0
    assert ledger.counters().resets == 1


def test_never_two_empty_steps() -> None:
    """Others that were said to be there did not run: the next step is the long prompt's, whatever is owed."""
    ledger = Ledger(0.5, True)
    step(ledger, Kind.CHUNK, 0.0, 100.0)
    assert ledger.defers(lambda: True)
    ledger.begin("empty", Kind.EMPTY, False, True, 100.0)
    assert not ledger.defers(lambda: True)
    assert ledger.counters().forced_steps == 1
    assert ledger.defers(lambda: True)


def test_first_chunk_in_flight() -> None:
    """Nobody knows yet what it costs: exact waits for it, plain does not."""
    for exact in (False, True):
        ledger = Ledger(0.5, exact)
        ledger.begin("chunk", Kind.CHUNK, True, False, 0.0)
        assert ledger.defers(lambda: True) == exact


def test_steps_in_flight() -> None:
    """Exact foresees a chunk at the last one's duration, and the decodes that pay for it."""
    ledger = Ledger(0.5, True)
    step(ledger, Kind.DECODE, 0.0, 0.1)
    step(ledger, Kind.CHUNK, 0.1, 0.45)  # 0.15 s to pay, less 0.1 s of credit
    assert ledger.debt == pytest.approx(0.05)
    ledger.begin("decode", Kind.DECODE, True, True, 0.45)
    assert not ledger.defers(lambda: True), "what is in flight pays"
    ledger.begin("chunk", Kind.CHUNK, True, False, 0.45)
    assert ledger.defers(lambda: True), "what is in flight costs"


def test_steps_that_are_never_reported() -> None:
    ledger = Ledger(0.5, True)
    for name in ("lost", "chunk"):
        ledger.begin(name, Kind.CHUNK, True, False, 0.0)
    assert ledger.end("other", 1.0) is None
    assert ledger.end("chunk", 1.0).seconds == 1.0
    assert ledger.counters().chunk_steps == 1
    assert ledger.end("lost", 2.0) is None
    assert ledger.debt > 0
    assert not ledger._flight


@given(st.floats(0.05, 0.95), st.floats(0.01, 0.2), st.floats(0.01, 5.0), st.integers(1, 3), st.integers(0, 99))
def test_share_of_any_device(share: float, decode: float, chunk: float, depth: int, seed: int) -> None:
    """With 1 to 3 steps in flight the others get the share of the time, but for the chunks in flight at the end.

    Where chunks are so short that the others keep more than the share anyway, nothing is deferred but once.
    """
    ledger, draw = Ledger(share, True), random.Random(seed)
    flight: deque[tuple[object, float]] = deque()
    free = got = longest = 0.0
    step(ledger, Kind.DECODE, 0.0, decode)
    now = start = free = decode
    for _ in range(400):
        deferred = ledger.defers(lambda: True)
        key, kind = object(), Kind.DECODE if deferred else Kind.CHUNK
        seconds = decode + (0.0 if deferred else chunk * draw.uniform(0.8, 1.2))
        longest = max(longest, seconds)
        ledger.begin(key, kind, True, deferred, now)
        free = max(free, now) + seconds
        flight.append((key, free))
        if len(flight) == depth:
            key, now = flight.popleft()
            ledger.end(key, now)
            got += decode
    elapsed = now - start
    assert got >= share * elapsed - depth * longest
    if share * (decode + 0.8 * chunk) > decode:
        assert got <= share * elapsed + depth * longest
    else:
        assert ledger.counters().deferred_steps <= 400


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0.0, False, 65536)),
        ({"SHARE": "", "SHARE_ASYNC": "", "MIN_TOKENS": ""}, (0.0, False, 65536)),
        ({"SHARE": "0"}, (0.0, False, 65536)),
        ({"SHARE": " 0.5 ", "SHARE_ASYNC": " 1", "MIN_TOKENS": " 1000 "}, (0.5, True, 1000)),
        ({"SHARE": "0.99"}, (0.95, False, 65536)),
        ({"SHARE_ASYNC": "0", "MIN_TOKENS": "1"}, (0.0, False, 1)),
    ],
)
def test_settings(environ: dict[str, str], expected: tuple[float, bool, int]) -> None:
    assert settings.read({f"VLLM_LONG_PREFILL_{name}": value for name, value in environ.items()}) == expected


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("SHARE", "1", "must be a number from 0"),
        ("SHARE", "inf", "must be a number from 0"),
        ("SHARE", "nan", "must be a number from 0"),
        ("SHARE", "-0.1", "must be a number from 0"),
        ("SHARE", "50%", "must be a number from 0"),
        ("SHARE_ASYNC", "true", "must be 0 or 1"),
        ("MIN_TOKENS", "0", "must be a whole number of at least 1"),
        ("MIN_TOKENS", "-5", "must be a whole number of at least 1"),
        ("MIN_TOKENS", "64k", "must be a whole number of at least 1"),
        ("MIN_TOKENS", "²", "must be a whole number of at least 1"),
    ],
)
def test_bad_settings(name: str, value: str, message: str) -> None:
    """Also where the share is off: a mistake is a mistake."""
    environ = {f"VLLM_LONG_PREFILL_{name}": value}
    with pytest.raises(ValueError, match=f"VLLM_LONG_PREFILL_{name} is '{value}', but {message}"):
        settings.read(environ)
    with pytest.raises(ValueError, match=message):
        settings.is_known(f"VLLM_LONG_PREFILL_{name}", environ)


def test_other_variables_are_not_known() -> None:
    assert not settings.is_known("VLLM_LONG_PREFILL_SHAR", {"VLLM_LONG_PREFILL_SHAR": "x"})
