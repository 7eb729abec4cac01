"""Proof of resumed-prefill-logits: a resumed request is sampled once, after the last token that is known of it.

"R" is preempted while it decodes, behind its prompt; some of its blocks stay in the prefix cache, so that it comes back
with computed tokens.  Others run beside it: what it samples too much lands on their rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import oracle
import pytest

PROMPT = 120  # R's; its first block is full, and cached, when it has eight tokens more

kinds = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])


def check(session: oracle.Session) -> None:
    """Every forward read its own request's tokens, and every request got the tokens that follow from them."""
    expected = {name: session.requests[name].max_tokens for name in session.scheduler.requests}
    session.finish(limit=1000)
    wrong = session.wrong_outputs()
    assert not wrong, oracle.told(wrong)
    wrong = session.wrong_reads()
    assert not wrong, oracle.told(wrong)
    got = {name: len(session.outputs[name]) for name in expected}
    assert got == expected, f"numbers of tokens {got}, not {expected}"


def decoding(session: oracle.Session, generated: int, others: int = 2, **params: Any) -> None:
    """R with at least that many tokens, and others that decode beside it."""
    for index in range(others):
        session.add(f"D{index}", oracle.prompt(20 + index, index), max_tokens=generated + 40)
    session.add("R", oracle.prompt(PROMPT, 9), **{"max_tokens": generated + 20, **params})
    while len(session.outputs["R"]) < generated:
        session.step()


def back(session: oracle.Session, lost: tuple[int, ...] = ()) -> oracle.Step:
    """Preempt R, run a step without it, and run the one in which it comes back."""
    held = session.preempt("R", lost=lost)
    session.step()
    session.resume(held)
    return session.step()


def sampled(step: oracle.Step, request: str) -> int:
    """How often the request was sampled in the step; with async scheduling a chunk's sample is thrown away."""
    return sum(sampling.owners.count(request) for sampling in step.samplings)


@contextmanager
def chunks(session: oracle.Session, size: int) -> Iterator[None]:
    """Steps in which no request gets more tokens than that."""
    config = session.scheduler.scheduler_config
    before, config.long_prefill_token_threshold = config.long_prefill_token_threshold, size
    try:
        yield
    finally:
        config.long_prefill_token_threshold = before


@kinds
def test_output_is_not_repeated(async_scheduling: bool) -> None:
    with oracle.engine(async_scheduling).session() as session:
        decoding(session, 30)
        step = back(session)
        assert 1 < step.scheduled["R"] < oracle.BLOCK, "not the scenario: R was to come back with its first block"
        check(session)


@kinds
def test_sampled_once(async_scheduling: bool) -> None:
    """One row of logits for it, and one for each of the others."""
    with oracle.engine(async_scheduling).session() as session:
        decoding(session, 30)
        step = back(session)
        assert [sampled(step, name) for name in ("D0", "D1", "R")] == [1, 1, 1], f"sampled {step.owners()}"
        check(session)


def test_requests_behind_it() -> None:
    """It takes a freed row in front of a prompt that ends in the same step; tokens are taken by row there."""
    with oracle.engine(True).session() as session:
        decoding(session, 30)
        held = session.preempt("R")
        session.add("P", oracle.prompt(1500, 11), max_tokens=6)
        session.step()
        session.abort("D1")
        session.resume(held)
        assert {"P", "R"} < set(session.step().scheduled)
        check(session)


@kinds
def test_two_come_back(async_scheduling: bool) -> None:
    """Different lengths behind the prompt, in one step."""
    with oracle.engine(async_scheduling).session() as session:
        session.add("Q", oracle.prompt(PROMPT, 8), max_tokens=60)
        session.step()
        session.step()
        session.step()
        decoding(session, 30, others=1)
        held = session.preempt("Q", "R")
        session.step()
        session.resume(held)
        step = session.step()
        assert step.scheduled["Q"] > step.scheduled["R"] > 1
        check(session)


@kinds
def test_chunk_behind_the_prompt(async_scheduling: bool) -> None:
    """A chunk that ends behind the prompt, but before the end of what is known, is not sampled."""
    with oracle.engine(async_scheduling).session() as session:
        decoding(session, 60)
        with chunks(session, 16):
            step = back(session)
            assert step.scheduled["R"] == 16, "not the scenario: a chunk was to be computed"
            check(session)


@kinds
def test_chunk_that_ends_the_prompt(async_scheduling: bool) -> None:
    """Nothing is cached, but the request is left out after its first chunk and comes back with computed tokens."""
    with oracle.engine(async_scheduling, enable_prefix_caching=False).session() as session:
        decoding(session, 30)
        with chunks(session, PROMPT):
            assert back(session).scheduled["R"] == PROMPT
        session.skip("R")
        assert "R" not in session.step().scheduled
        assert session.step().scheduled["R"] > 1
        check(session)


@kinds
def test_chunks_of_one_token(async_scheduling: bool) -> None:
    """Such a chunk looks like a decode, and its row must still not be sampled for a token."""
    with oracle.engine(async_scheduling).session() as session:
        decoding(session, 20)
        with chunks(session, 1):
            step = back(session)
            assert step.scheduled["R"] == 1, "not the scenario: one token was to be computed"
            for _ in range(3):
                session.step()
        check(session)
        assert step.forwards[0] == ["R"], f"not with the prompts: {step.forwards}"


@kinds
def test_chunk_of_one_token_beside_others_that_catch_up(async_scheduling: bool) -> None:
    """Rows that catch up on several tokens and on one: all are prompts, whichever comes first."""
    with oracle.engine(async_scheduling).session() as session:
        session.add("Q", oracle.prompt(PROMPT, 8), max_tokens=60)
        decoding(session, 30, others=1)
        held = session.preempt("Q", "R")
        session.step()
        session.resume(held)
        budget = session.scheduler.max_num_scheduled_tokens
        left = session.requests["Q"].num_tokens - oracle.BLOCK
        session.scheduler.max_num_scheduled_tokens = 1 + left + 1
        try:
            step = session.step()
        finally:
            session.scheduler.max_num_scheduled_tokens = budget
        assert step.scheduled == {"D0": 1, "Q": left, "R": 1}, "not the scenario: one token of R was to be computed"
        check(session)


@kinds
def test_prefill_of_several_requests(async_scheduling: bool) -> None:
    """Prompts that are computed in one batch."""
    with oracle.engine(async_scheduling).session() as session:
        runner = session.runner
        before, runner.max_prefill_batch_size = runner.max_prefill_batch_size, 4
        try:
            decoding(session, 30, others=1)
            held = session.preempt("R")
            session.step()
            session.resume(held)
            for index in range(3):
                session.add(f"P{index}", oracle.prompt(40 + index, 11 + index), max_tokens=6)
            session.step()
            check(session)
        finally:
            runner.max_prefill_batch_size = before


@kinds
@pytest.mark.parametrize("budget", [1024, 64])
def test_memory_pressure(async_scheduling: bool, budget: int) -> None:
    """The scheduler's own preemptions: more requests than blocks, long prompts in chunks with the small budget."""
    options = {"max_model_len": 512, "num_gpu_blocks_override": 11, "max_num_batched_tokens": budget}
    with oracle.engine(async_scheduling, **options).session() as session:
        for index in range(4):
            session.add(f"R{index}", oracle.prompt(180 + 13 * index, index), max_tokens=100)
        check(session)
        assert any(made.num_preemptions for made in session.requests.values()), "not the scenario: no preemption"


@kinds
def test_structured_step(async_scheduling: bool) -> None:
    """The combined sampling call has one row per request; more would shift the masks of the rows behind."""
    with oracle.engine(async_scheduling).session() as session:
        decoding(session, 30)
        held = session.preempt("R")
        session.step()
        session.resume(held)
        step = session.step(grammar={})
        assert 1 < step.scheduled["R"] < oracle.BLOCK
        assert [sampled(step, name) for name in ("D0", "D1", "R")] == [1, 1, 1], f"sampled {step.owners()}"
        check(session)


# Guards: stock does these right.


@kinds
def test_nothing_cached(async_scheduling: bool) -> None:
    """It starts again from its first token."""
    with oracle.engine(async_scheduling, enable_prefix_caching=False).session() as session:
        decoding(session, 30)
        step = back(session)
        assert step.scheduled["R"] > PROMPT, "not the scenario: all of R was to be computed"
        check(session)


@kinds
def test_fresh_prompts(async_scheduling: bool) -> None:
    """Chunks of prompts that were never preempted, also of one token."""
    with oracle.engine(async_scheduling).session() as session:
        session.add("D", oracle.prompt(20, 1), max_tokens=40)
        session.add("P", oracle.prompt(1500, 2), max_tokens=4)
        session.step()
        with chunks(session, 1):
            session.add("S", oracle.prompt(5, 3), max_tokens=4)
            session.step()
            session.step()
        check(session)


@kinds
def test_decode_that_skips_a_step(async_scheduling: bool) -> None:
    """A decode stays one when its row is added anew."""
    if async_scheduling:
        names = ["D0"]  # its input, then, is async-inputs' matter
    else:
        names = ["D0", "D1", "R"]
    with oracle.engine(async_scheduling).session() as session:
        decoding(session, 5)
        session.skip(*names)
        assert not set(names) & set(session.step().scheduled)
        step = session.step()
        assert step.forwards == [step.rows], f"not all decodes: {step.forwards}"
        if not async_scheduling:
            check(session)
