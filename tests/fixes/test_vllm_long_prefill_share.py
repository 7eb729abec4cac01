"""Proof of vllm-long-prefill-share: while a long prompt is prefilled, the others keep the share of their speed.

vLLM's own engine loops and schedulers, synchronous and asynchronous, on a device that takes virtual time
(longprefill.py); where vllm-gaudi is there, also its real runner with the oracle of reads.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import longprefill
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from longprefill import Costs, Engine

PROMPT = 200_000
LOGGER = "vllm._fixpack.long_prefill_share"

loops = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


def beside(others: int, share: float | None = 0.5, exact: bool = True, prompt: int = PROMPT, **more: Any) -> Engine:
    """Some decodes, and from second 3 on a long prompt beside them, until its first token."""
    engine = Engine(share, exact, **more)
    for index in range(others):
        engine.add(f"D{index}", 1000, 500_000)
    engine.add("L", prompt, 4, at=3.0)
    return engine.run(until=lambda: bool(engine.tokens["L"]))


def check_kept(engine: Engine, least: float, most: float, *names: str) -> None:
    kept = engine.kept(*names or ("L",))
    assert least <= kept <= most, f"the others kept {kept:.3f} of their speed, not {least} to {most}"


def deferred_by(share: Any) -> int:
    """Steps from which a long prompt was left out; none where there is no share."""
    return int(share.ledger.counters().deferred_steps) if share else 0


def deferred(engine: Engine) -> int:
    return deferred_by(engine.share)


def check_kept_in(steps: list[longprefill.Step], least: float, most: float) -> None:
    elapsed = steps[-1].end - steps[0].begin if steps else 1.0
    kept = sum(step.undisturbed for step in steps) / elapsed
    assert least <= kept <= most, f"the others kept {kept:.3f} of their speed, not {least} to {most}"


@pytest.mark.parametrize("others", [1, 3, 8])
def test_others_keep_half(others: int) -> None:
    check_kept(beside(others), 0.48, 0.52)


@pytest.mark.parametrize("others", [1, 8])
@pytest.mark.parametrize("share", [0.2, 0.8])
def test_others_keep_the_share(share: float, others: int) -> None:
    check_kept(beside(others, share, prompt=120_000), share - 0.02, share + 0.02)


@pytest.mark.parametrize("others", [1, 3])
def test_plain_share(others: int) -> None:
    """Of two chunks in flight only one is paid for, so that a half becomes a third."""
    check_kept(beside(others, exact=False), 0.30, 0.40)


@pytest.mark.parametrize("exact", [False, True], ids=["plain", "exact"])
def test_synchronous_scheduling(exact: bool) -> None:
    check_kept(beside(2, exact=exact, asynchronous=False), 0.48, 0.53)


def test_what_the_long_prompt_pays() -> None:
    """Exact costs a third more than plain until the first token."""
    ratio = beside(1).ttft("L") / beside(1, exact=False).ttft("L")
    assert 1.25 <= ratio <= 1.35, f"the first token takes {ratio:.2f} times as long as with the plain share"


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_durations_that_vary(share: float) -> None:
    """By 30 % up and down; the speed that is measured against varies as well."""
    check_kept(beside(2, share, prompt=120_000, costs=Costs(jitter=0.3)), share - 0.03, share + 0.03)


@loops
def test_cached_beginning(asynchronous: bool) -> None:
    """Nine tenths of the prompt are in the prefix cache: what is left is as slow per chunk as ever."""
    engine = Engine(0.5, True, asynchronous, caching=True)
    whole = [(3 * i) % 499 for i in range(PROMPT)]
    engine.add("first", whole[: PROMPT * 9 // 10], 1)
    engine.run()
    engine.add("D", 1000, 500_000, at=engine.clock.now)
    engine.add("L", whole, 4, at=engine.clock.now + 1)
    engine.run(until=lambda: bool(engine.tokens["L"]))
    computed = sum(step.tokens.get("L", 0) for step in engine.window("L"))
    assert computed < PROMPT / 9, "not the scenario: a cached beginning"
    check_kept(engine, 0.45, 0.55)


def test_long_request_that_decodes() -> None:
    """When its own prefill is done, a long request is one of the others."""
    engine = Engine(0.5, True)
    engine.add("first", 100_000, 500_000)
    engine.add("L", PROMPT, 4, at=80.0)
    engine.run(until=lambda: bool(engine.tokens["L"]))
    check_kept(engine, 0.48, 0.52)


def test_short_prompt_arrives() -> None:
    """It gets its first token and its last one sooner."""
    engine = Engine(0.5, True)
    engine.add("D", 1000, 500_000)
    engine.add("L", 2 * PROMPT, 4, at=3.0)
    engine.add("S", 1500, 50, at=100.0)
    engine.run(until=lambda: "S" in engine.ended)
    whole = engine.ended["S"] - 100.0
    assert whole < 10, f"a short answer took {whole:.0f} s"
    assert engine.ttft("S") < 4


@pytest.mark.parametrize("prompts", [2, 4, 5])
def test_several_long_prompts(prompts: int) -> None:
    """Up to four chunks are in one step, and the gap is as long; the share holds."""
    engine = Engine(0.5, True)
    engine.add("D", 1000, 500_000)
    names = [f"L{index}" for index in range(prompts)]
    for name in names:
        engine.add(name, 100_000, 2, at=3.0)
    engine.run(until=lambda: all(engine.tokens[name] for name in names))
    check_kept(engine, 0.46, 0.54, *names)


@loops
def test_left_out_behind_long_prompts(asynchronous: bool) -> None:
    """A decode behind four long prompts gets no token in a step that has a chunk of each; that is owed, too."""
    engine = Engine(0.5, True, asynchronous)
    engine.add("D", 1000, 500_000)
    names = [f"L{index}" for index in range(4)]
    for name in names:
        engine.add(name, 100_000, 2, at=3.0)
    engine.add("behind", 100, 500_000, at=20.0)
    engine.run(until=lambda: all(engine.tokens[name] for name in names))
    steps = [step for step in engine.window(*names) if engine.tokens["behind"] and step.begin > 25.0]
    check_kept_in(steps, 0.46, 0.54)
    full = [step for step in steps if len(step.prefills) == 4]
    assert sum("behind" not in step.tokens for step in full) > 20, "not the scenario: it was to be left out"


@loops
def test_waiting_long_prompt(asynchronous: bool) -> None:
    """It is held back while a debt is open, as a running one is, and short prompts behind it are not."""
    engine = Engine(0.5, True, asynchronous)
    engine.add("D", 1000, 500_000)
    engine.add("L", 100_000, 2, at=3.0)
    engine.run(until=lambda: engine.clock.now > 20.0 and "L" in engine.steps[-1].prefills)
    at = engine.steps[-1].end
    engine.add("M", 100_000, 2, at=at)
    engine.add("S", 100, 2, at=at)
    engine.run(until=lambda: bool(engine.tokens["M"]))
    first = {name: next(step.begin for step in engine.steps if name in step.prefills) for name in ("M", "S")}
    assert first["S"] < first["M"], "the long prompt is not held back"
    check_kept(engine, 0.45, 0.55, "L", "M")


@loops
def test_preempted_for_lack_of_blocks(asynchronous: bool) -> None:
    """The long prompt is taken out of memory and computed again: a long prefill as before, until all are done."""
    engine = Engine(0.5, True, asynchronous, blocks=820, max_num_seqs=8)
    for index in range(4):
        engine.add(f"D{index}", 1000, 1500)
    engine.add("L", 100_000, 600, at=1.0)
    engine.run()
    chunks = [step.tokens["L"] for step in engine.steps if "L" in step.prefills]
    assert sum(chunks) > 100_000, "not the scenario: L was to be preempted"
    assert {name: len(got) for name, got in engine.tokens.items()} == {f"D{i}": 1500 for i in range(4)} | {"L": 600}
    early = [step for step in engine.steps if step.begin < min(engine.ended[f"D{i}"] for i in range(4))]
    places = [place for place, step in enumerate(early) if "L" in step.prefills]
    check_kept_in(early[places[0] : places[-1] + 1], 0.46, 0.54)


@loops
def test_priorities(asynchronous: bool) -> None:
    check_kept(beside(3, asynchronous=asynchronous, policy="priority", prompt=100_000), 0.46, 0.54)


def test_speculative_decoding() -> None:
    """Several tokens per step and stream, a varying number of them accepted."""
    check_kept(beside(2, asynchronous=False, drafts=3, prompt=100_000), 0.46, 0.54)


@st.composite
def workloads(draw: st.DrawFn) -> dict[str, Any]:
    """Long and short prompts that come, and some that go, beside one stream that is there all the time."""
    longs = draw(st.lists(st.tuples(st.integers(16_384, 50_000), st.floats(0.1, 20.0)), min_size=1, max_size=3))
    shorts = draw(st.lists(
        st.tuples(st.integers(1, 1500), st.integers(1, 120), st.floats(0.0, 30.0), st.booleans()), max_size=5))
    return {
        "share": draw(st.sampled_from([0.2, 0.35, 0.5, 0.65, 0.8])),
        "asynchronous": draw(st.booleans()),
        "jitter": draw(st.sampled_from([0.0, 0.1, 0.3])),
        "seed": draw(st.integers(0, 9)),
        "longs": longs,
        "shorts": shorts,
        "gone": draw(st.sampled_from([None, *range(len(longs))])),
    }


@settings(
    max_examples=25, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(workloads())
def test_any_workload(load: dict[str, Any]) -> None:
    """The share holds but for what two steps may cost, nobody waits for ever, and everything is done in the end.

    One of the two steps is in flight when the share is decided, the other is the last one, which ends the window.
    """
    costs = Costs(context=5e-5, jitter=load["jitter"])
    engine = Engine(load["share"], True, load["asynchronous"], costs, seed=load["seed"], min_tokens=16_384)
    engine.add("D", 500, 500_000)
    longs = {f"L{index}": tokens for index, (tokens, _) in enumerate(load["longs"])}
    for name, (tokens, at) in zip(longs, load["longs"], strict=True):
        engine.add(name, tokens, 3, at=at)
    for index, (tokens, most, at, goes) in enumerate(load["shorts"]):
        engine.add(f"S{index}", tokens, most, at=at)
        if goes:
            engine.abort(f"S{index}", at + 1.0)
    gone = None if load["gone"] is None else f"L{load['gone']}"
    if gone:
        engine.abort(gone, load["longs"][load["gone"]][1] + 4.0)
    rest = [name for name in engine.arrivals if name != "D"]
    engine.run(until=lambda: not any(name in engine.scheduler.requests for name in rest)
               and engine.clock.now > max(engine.arrivals.values()))
    for name, got in engine.tokens.items():
        wanted = 3 if name in longs else load["shorts"][int(name[1:])][1] if name != "D" else 0
        aborted = name == gone or (name[0] == "S" and load["shorts"][int(name[1:])][3])
        assert name == "D" or aborted or len(got) == wanted, f"{name} got {len(got)} of {wanted} tokens"
    for steps in prefill_windows(engine, set(longs)):
        elapsed = steps[-1].end - steps[0].begin
        chunks = [step.end - step.begin for step in steps if longs.keys() & {*step.prefills}]
        longest = max(step.end - step.begin for step in steps)
        kept = sum(step.undisturbed for step in steps)
        low = load["share"] * (1 - load["jitter"] / 2) * elapsed - 2 * longest
        assert kept >= low, f"the others kept {kept / elapsed:.3f} of their speed in {elapsed:.1f} s"
        most = sum(chunks) * load["share"] / (1 - load["share"]) + 2 * longest
        assert elapsed - sum(chunks) <= most, f"long prompts waited {elapsed - sum(chunks):.1f} s, not {most:.1f} s"


def prefill_windows(engine: Engine, longs: set[str]) -> Iterator[list[longprefill.Step]]:
    """The steps between the first and the last chunk of long prompts, for each time in which one is unfinished."""
    steps: list[longprefill.Step] = []
    for step in engine.steps:
        if longs & {*step.prefills} or steps:
            steps.append(step)
        open_ones = [
            name for name in longs
            if engine.arrivals[name] <= step.end
            and not (engine.tokens[name] and engine.tokens[name][0] <= step.end + 1e-9)
            and (name not in engine.ended or engine.ended[name] > step.end)
            and name in engine.tokens and (engine.tokens[name] or name in engine.scheduler.requests)
        ]
        if steps and not open_ones:
            last = max(place for place, each in enumerate(steps) if longs & {*each.prefills})
            yield steps[: last + 1]
            steps = []


# -- configuration and messages ---------------------------------------------------------------------------------------


@contextmanager
def lines() -> Iterator[list[str]]:
    """What the share logs meanwhile."""
    logger = logging.getLogger(LOGGER)
    found: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


BAD = [("SHARE", "1"), ("SHARE", "-0.1"), ("SHARE", "half"), ("SHARE", "nan"), ("SHARE_ASYNC", "yes"),
       ("SHARE_ASYNC", "2"), ("MIN_TOKENS", "0"), ("MIN_TOKENS", "64k"), ("MIN_TOKENS", "1e5")]


def validate(hard_fail: bool) -> None:
    """vLLM's check of the environment, as the front end does it before anything is loaded."""
    from vllm import envs
    from vllm.platforms import current_platform

    check = getattr(envs, "validate_environ", None) or current_platform.validate_environ
    check(hard_fail)


@pytest.mark.parametrize(("name", "value"), BAD)
@pytest.mark.parametrize("where", ["front end", "scheduler"])
def test_bad_values(where: str, name: str, value: str) -> None:
    start = {"front end": lambda: validate(hard_fail=False), "scheduler": lambda: Engine(longprefill.AS_IT_IS)}[where]
    with (
        longprefill.environment(**{name: value}),
        pytest.raises(ValueError, match=f"VLLM_LONG_PREFILL_{name} is '{value}', but must be"),
    ):
        start()


def test_known_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's own check knows them, and still no others."""
    import os

    from vllm import envs

    for name in [name for name in os.environ if name.startswith("VLLM_") and name not in envs.environment_variables]:
        monkeypatch.delenv(name)
    with longprefill.environment(SHARE="0.5", SHARE_ASYNC="1", MIN_TOKENS="65536"):
        validate(hard_fail=True)
        monkeypatch.setenv("VLLM_LONG_PREFILL_SHAR", "0.5")
        with pytest.raises(ValueError, match=r"detected: VLLM_LONG_PREFILL_SHAR$"):
            validate(hard_fail=True)


def test_line_per_long_prompt() -> None:
    """What a long prompt cost, and what the others kept; aborted ones and lone ones as well."""
    with lines() as told:
        beside(2, prompt=100_000)
        told = [line for line in told if line.startswith("Long prompt")]
        assert len(told) == 1, "nothing is told of a long prompt"
        assert "Long prompt L of 100000 tokens prefilled in" in told[0]
        assert "49 chunks, deferred in" in told[0]
        assert re.search(r"others kept 0\.(49|50) of their speed \(0\.50 asked\)", told[0])
    with lines() as told:
        engine = Engine(0.5, True)
        engine.add("D", 1000, 3000)
        engine.add("L", 100_000, 4, at=3.0)
        engine.abort("L", 20.0)
        engine.add("alone", 100_000, 4, at=300.0)
        engine.run()
        first, second = [line for line in told if line.startswith("Long prompt")]
        assert re.search(r"Long prompt L of 100000 tokens aborted in .* others kept 0\.4[89] of their speed", first)
        assert re.search(r"Long prompt alone of 100000 tokens prefilled in .*; nothing else ran\.", second)


def test_counters_with_the_statistics() -> None:
    """At the interval of vLLM's own statistics, unless these are off, and only beside a long prompt."""
    for log_stats in (False, True):
        with lines() as told:
            engine = beside(1, prompt=100_000, log_stats=log_stats)
            told = [line for line in told if line.startswith("Long prefill share:")]
            expected = int(engine.window("L")[-1].end - engine.window("L")[0].begin) // 10 if log_stats else 0
            assert abs(len(told) - expected) <= log_stats, f"{len(told)} lines of counters, not {expected}"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"long_prefill_token_threshold": 0}, "no limit of tokens per chunk"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 1 << 20}, "chunked prefill is off"),
        ({"data_parallel_size": 2}, "is ignored: with data parallelism"),
    ],
    ids=["no threshold", "no chunks", "data parallel"],
)
def test_told_once_at_the_start(options: dict[str, Any], expected: str) -> None:
    with lines() as told:
        engine = beside(1, prompt=70_000, **options)
    assert [expected in line for line in told].count(True) == 1, f"it does not say: {expected}"
    assert (engine.share is None) == ("data_parallel_size" in options)


# -- guards: stock does these right -----------------------------------------------------------------------------------


def digest(engine: Engine) -> str:
    steps = [[round(begin, 6), sorted(tokens.items())] for begin, tokens in engine.trace()]
    return hashlib.sha256(json.dumps(steps).encode()).hexdigest()[:16]


@pytest.mark.parametrize("share", [None, 0.0])
def test_off_is_stock(share: float | None) -> None:
    """Step by step; the digest is that of stock, where this test passes, too."""
    engine = beside(3, share)
    assert digest(engine) == "72201b0cb91863cf"
    assert engine.kept("L") < 0.05


@loops
@pytest.mark.parametrize("prompts", [1, 3])
def test_no_others(prompts: int, asynchronous: bool) -> None:
    """Long prompts alone are never deferred, and as fast as without a share."""
    traces = []
    for share in (None, 0.5):
        engine = Engine(share, True, asynchronous)
        for index in range(prompts):
            engine.add(f"L{index}", 100_000, 1, at=index * 5.0)
        engine.run()
        traces.append(engine.trace())
        assert deferred(engine) == 0
    assert traces[0] == traces[1]


@loops
def test_others_end(asynchronous: bool) -> None:
    """No deferral without others, and at most one empty step."""
    engine = Engine(0.5, True, asynchronous)
    engine.add("D", 1000, 300)
    engine.add("L", 100_000, 50, at=1.0)
    engine.run(until=lambda: "D" in engine.ended)
    before = deferred(engine)
    engine.run()
    assert deferred(engine) <= before + 1
    assert len(engine.tokens["L"]) == 50
    assert sum(not step.tokens for step in engine.steps if step.begin < engine.ended["L"] - 0.5) <= 1


@loops
@pytest.mark.parametrize("gone", ["D", "L"])
def test_abort_of_either_side(gone: str, asynchronous: bool) -> None:
    engine = Engine(0.5, True, asynchronous)
    engine.add("D", 1000, 2000)
    engine.add("L", 100_000, 50, at=1.0)
    engine.abort(gone, 20.0)
    engine.run(until=lambda: engine.clock.now > 20.5)
    before = deferred(engine)
    engine.run()
    assert deferred(engine) <= before + 1
    left = {"D": 2000, "L": 50}
    del left[gone]
    assert {name: len(engine.tokens[name]) for name in left} == left
    assert sum(not step.tokens for step in engine.steps[:-3]) <= 1


@loops
def test_wrong_predicate(asynchronous: bool) -> None:
    """If it always claimed that others can run, every second step would still be the long prompt's."""
    engine = Engine(0.5, True, asynchronous)
    engine.add("L", 100_000, 5)
    if engine.share:
        engine.share._others = lambda scheduler: True
    engine.run(limit=400)
    assert len(engine.tokens["L"]) == 5


def test_same_again() -> None:
    assert beside(2, prompt=80_000).trace() == beside(2, prompt=80_000).trace()


def test_short_chunks() -> None:
    """Where a chunk is short the others keep more than the share anyway, and nothing is deferred."""
    engine = beside(1, 0.2, costs=Costs(context=0.0))
    assert deferred(engine) <= 1  # beside the first chunk: nobody knows yet how long one takes
    assert engine.kept("L") >= 0.25


def test_compile_cache_key() -> None:
    """The variables are no part of it."""
    from vllm import envs

    with longprefill.environment():
        without = envs.compile_factors()
    with longprefill.environment(SHARE="0.5", SHARE_ASYNC="1", MIN_TOKENS="70000"):
        assert envs.compile_factors() == without


if importlib.util.find_spec("vllm_gaudi"):
    import oracle

    class Pace:
        """A clock for the oracle's engine: a step with a prompt in it takes ten seconds, any other one."""

        def __init__(self) -> None:
            self.now = 0.0

        def __call__(self) -> float:
            return self.now

        def drive(self, session: oracle.Session) -> None:
            """Let the session's steps take their time, which has passed when their tokens are delivered."""
            execute, durations = session.execute, [0.0]

            def timed(scheduled: Any, grammar: Any = None) -> oracle.Step:
                durations.append(10.0 if any(count > 1 for count in scheduled.num_scheduled_tokens.values()) else 1.0)
                self.now += durations[-2 if session.async_scheduling else -1]
                return execute(scheduled, grammar)

            session.execute = timed  # type: ignore[method-assign]

    @loops
    def test_tokens_on_gaudi(asynchronous: bool) -> None:
        """vllm-gaudi's runner, with what this fix requires: every request reads and gets its own tokens.

        Four long prompts take a step's whole budget, so that decodes are left out of it; and the KV cache runs full,
        where the fixes are there without which a preemption goes wrong.
        """
        with longprefill.environment(SHARE="0.5", SHARE_ASYNC="1", MIN_TOKENS="200"):
            engine = oracle.engine(
                asynchronous, max_num_batched_tokens=256, long_prefill_token_threshold=64, num_gpu_blocks_override=24,
                max_model_len=1024)
        share = getattr(engine.parts.scheduler, "_long_prefill_share", None)
        pace = Pace()
        if share:
            share.clock = pace
        pool = engine.parts.scheduler.kv_cache_manager.block_pool
        left_out = preempted = 0
        for seed in range(6):
            tight = seed % 2 == 1
            if tight and share is None:
                continue
            with engine.session() as session:
                held = pool.get_new_blocks(pool.get_num_free_blocks() - 13) if tight else []
                try:
                    drive(session, asks(seed), pace)
                finally:
                    pool.free_blocks(held)
                left_out += decodes_left_out(session)
                preempted += sum(request.num_preemptions for request in session.requests.values())
                wrong = session.wrong_reads() + session.wrong_outputs()
                assert not wrong, f"seed {seed}: {oracle.told(wrong)}"
        if share:
            assert deferred_by(share) > 20, "not the scenario: long prompts were to be left out"
            assert left_out > 0, "not the scenario: decodes were to be left out"
            assert preempted > 0, "not the scenario: the KV cache was to run full"

    def asks(seed: int) -> list[tuple[int, str, int, int]]:
        """By step: a decode, then four long prompts, then decodes behind them (name, prompt, tokens to generate)."""
        draw = random.Random(seed)
        found = [(0, "D0", draw.randint(5, 90), 60)]
        found += [(2, f"L{index}", draw.randint(250, 420), draw.randint(2, 20)) for index in range(4)]
        for index in range(3):
            found.append((draw.randint(3, 9), f"D{1 + index}", draw.randint(5, 90), draw.randint(10, 40)))
        return sorted(found)

    def drive(session: oracle.Session, waiting: list[tuple[int, str, int, int]], pace: Pace) -> None:
        pace.drive(session)
        while waiting or session.scheduler.has_requests():
            assert len(session.steps) < 1000, "not finished"
            while waiting and waiting[0][0] <= len(session.steps):
                _, name, size, most = waiting.pop(0)
                session.add(name, oracle.prompt(size, size), max_tokens=most)
            session.step()
        session.drain()

    def decodes_left_out(session: oracle.Session) -> int:
        """Decodes that ran in one step and in a later one, but not in the step between."""
        found, runs = 0, [{name for name, count in step.scheduled.items() if count == 1} for step in session.steps]
        for place in range(1, len(runs) - 1):
            found += len(runs[place - 1] & runs[place + 1] - {*session.steps[place].scheduled})
        return found
