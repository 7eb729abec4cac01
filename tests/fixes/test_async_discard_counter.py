"""Proof of async-discard-counter: a token that arrives for a request in the middle of its prompt is dropped once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import cpuhpu
import oracle
import pytest
from vllm.v1.request import Request, RequestStatus

CHUNK = 64


def scheduler() -> Any:
    """The real class, with as much of a scheduler as one output needs."""
    from vllm_gaudi.v1.core.sched.hpu_async_scheduler import HPUAsyncScheduler

    made = object.__new__(HPUAsyncScheduler)
    made.max_model_len = 2048
    made.kv_cache_manager = SimpleNamespace(cache_blocks=lambda request, count: None)
    return made


def request(placeholders: int, discard: int) -> Request:
    made = Request(
        request_id="A", prompt_token_ids=[1, 2, 3], sampling_params=cpuhpu.sampling(), pooling_params=None,
        arrival_time=0.0,
    )
    made.status = RequestStatus.RUNNING
    made.num_computed_tokens = 3
    made.num_output_placeholders = placeholders
    made.async_tokens_to_discard = discard
    return made


def deliver(one: Request, token: int = 7) -> list[int]:
    tokens, stopped = scheduler()._update_request_with_output(one, [token])
    assert not stopped
    return list(tokens)


def reset(session: oracle.Session) -> None:
    """What EngineCore.reset_prefix_cache does between two steps, with a step in flight."""
    assert session.scheduler.reset_prefix_cache(reset_running_requests=True)


def delivered_right(session: oracle.Session) -> None:
    """Every token that was delivered belongs there, and none is missing.

    The rows of requests that are resumed at once are another fix's, so what the model read is not asked here.
    """
    session.finish()
    for name, made in session.requests.items():
        assert len(session.outputs[name]) == made.max_tokens, f"{name} got {len(session.outputs[name])} tokens"


# One output.


@pytest.mark.parametrize("discard", [0, 1, 2])
def test_token_in_the_middle_of_a_prompt(discard: int) -> None:
    """Nothing was to be sampled: the token is dropped, and counted if it is one that a reset had announced."""
    one = request(placeholders=0, discard=discard)
    assert deliver(one) == []
    assert one.async_tokens_to_discard == max(0, discard - 1)
    assert one.num_output_placeholders == 0
    assert one.num_output_tokens == 0


def test_good_token_after_a_dropped_one() -> None:
    """The announced token is dropped once; the next one is the request's own."""
    one = request(placeholders=0, discard=1)
    assert deliver(one, 7) == []
    one.num_output_placeholders = 1
    assert deliver(one, 8) == [8]
    assert list(one.output_token_ids) == [8]


# In the engine.


def test_reset_during_decoding() -> None:
    """The token in flight arrives while the prompts are computed again, in several steps."""
    with oracle.engine(True, long_prefill_token_threshold=CHUNK).session() as session:
        for index, name in enumerate("AB"):
            session.add(name, oracle.prompt(3 * CHUNK, index), max_tokens=8)
        for _ in range(6):
            session.step()
        reset(session)
        step = session.step()
        assert step.scheduled == {"A": CHUNK, "B": CHUNK}, "not the scenario: chunks were to be computed"
        delivered_right(session)


def test_two_resets() -> None:
    """A second reset before the prompts are done: nothing is in flight then that could be dropped."""
    with oracle.engine(True, long_prefill_token_threshold=CHUNK).session() as session:
        session.add("A", oracle.prompt(3 * CHUNK, 1), max_tokens=8)
        for _ in range(6):
            session.step()
        reset(session)
        session.step()
        session.step()
        reset(session)
        delivered_right(session)


def test_token_of_a_resumed_chunk() -> None:
    """A resumed request whose chunk ends behind its prompt; the runner of stock samples there."""
    with oracle.engine(True, long_prefill_token_threshold=CHUNK).session() as session:
        session.add("A", oracle.prompt(120, 1), max_tokens=160)
        while len(session.outputs["A"]) < 150:
            session.step()
        held = session.preempt("A", lost=[1])
        session.step()
        session.resume(held)
        step = session.step()
        assert step.scheduled == {"A": CHUNK}, "not the scenario: a chunk behind the prompt was to be computed"
        delivered_right(session)


# Guards: stock does these right.


def test_token_that_was_expected() -> None:
    one = request(placeholders=1, discard=0)
    assert deliver(one) == [7]
    assert one.num_output_placeholders == 0


def test_announced_token_after_the_prompt() -> None:
    """The prompt was computed again in one step: vLLM's own scheduler counts."""
    one = request(placeholders=1, discard=1)
    assert deliver(one) == []
    assert (one.async_tokens_to_discard, one.num_output_placeholders) == (0, 1)


def test_preemption_without_a_token_in_flight() -> None:
    with oracle.engine(True, long_prefill_token_threshold=CHUNK).session() as session:
        session.add("A", oracle.prompt(3 * CHUNK, 1), max_tokens=8)
        for _ in range(6):
            session.step()
        held = session.preempt("A")
        session.step()
        session.resume(held)
        delivered_right(session)
