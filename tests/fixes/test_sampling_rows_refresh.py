"""Proof of sampling-rows-refresh: after a reorder of the batch, every request is sampled with its own parameters.

The engine runs prompts in chunks of at most 512 tokens.  What a row of the sampler was given is compared with what the
request that the row's logits belong to had asked for.
"""

from __future__ import annotations

import oracle
import pytest

OPTIONS = {"long_prefill_token_threshold": 512}

kinds = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])


def decode_behind_a_prompt(session: oracle.Session, p0: dict, p1: dict) -> oracle.Step:
    """Rows D, P1, P0; P0 becomes a decode while P1 still prefills, so the runner swaps them; nothing came or went.

    P1 took the row of X, which ended.  Two steps go by in that order before the swap.
    """
    session.add("D", oracle.prompt(20, 1), max_tokens=12)
    session.add("X", oracle.prompt(20, 2), max_tokens=1)
    session.add("P0", oracle.prompt(1400, 3), max_tokens=6, **p0)
    session.step()
    session.add("P1", oracle.prompt(1900, 4), max_tokens=6, **p1)
    session.step()
    session.step()
    step = session.step()
    assert step.scheduled["P0"] == 1, "not the scenario: P0 is no decode yet"
    assert step.scheduled["P1"] > 1, "not the scenario: P1 is no prompt any more"
    assert set(step.rows) == {"D", "P0", "P1"}
    session.finish()
    return step


def check(session: oracle.Session) -> None:
    """No request was sampled with another's parameters, in any step."""
    wrong = session.wrong_parameters()
    assert not wrong, oracle.told(wrong)


@kinds
def test_swap_without_batch_change(async_scheduling: bool) -> None:
    """The device rows keep the old order when a step swaps rows but adds and removes no request."""
    with oracle.engine(async_scheduling, **OPTIONS).session() as session:
        decode_behind_a_prompt(
            session,
            {"temperature": 0.7, "top_p": 0.8, "top_k": 7, "repetition_penalty": 1.25, "presence_penalty": 0.5},
            {"temperature": 0.9, "top_p": 0.95, "top_k": 9, "repetition_penalty": 1.5, "frequency_penalty": 0.25},
        )
        check(session)


def test_swap_after_refresh_of_an_unsampled_prompt() -> None:
    """Sync: the step's refresh comes before its swap, and a partial prompt is not sampled, so its row stays wrong."""
    with oracle.engine(False, **OPTIONS).session() as session:
        session.add("D0", oracle.prompt(20, 1), max_tokens=1)
        session.add("D1", oracle.prompt(20, 2), max_tokens=6, temperature=0.3)
        session.step()
        session.add("P", oracle.prompt(700, 3), max_tokens=3, temperature=0.9, top_k=5)
        step = session.step()
        assert step.rows == ["D1", "P"], "not the scenario: P did not take D0's row and swap with D1"
        assert "P" not in step.samplings[0].owners, "not the scenario: P was sampled"
        session.finish()
        check(session)


@kinds
def test_prompt_ids_of_penalties(async_scheduling: bool) -> None:
    """The cached prompt tokens are kept by row: after a swap, penalties are computed with another's prompt."""
    with oracle.engine(async_scheduling, **OPTIONS).session() as session:
        decode_behind_a_prompt(session, {"repetition_penalty": 1.25}, {"repetition_penalty": 1.25})
        check(session)


@kinds
def test_allowed_token_mask(async_scheduling: bool) -> None:
    """A swap copies one row of the mask over the other: a request loses its allowed tokens."""
    with oracle.engine(async_scheduling, **OPTIONS).session() as session:
        decode_behind_a_prompt(
            session,
            {"allowed_token_ids": [10, 11], "temperature": 0.7},
            {"allowed_token_ids": [20, 21], "temperature": 0.7},
        )
        check(session)
        assert set(session.outputs["P0"]) <= {10, 11}
        assert set(session.outputs["P1"]) <= {20, 21}


@kinds
def test_mixed_greedy_and_random(async_scheduling: bool) -> None:
    """A greedy request must stay greedy, and a random one random, when they change places."""
    with oracle.engine(async_scheduling, **OPTIONS).session() as session:
        decode_behind_a_prompt(session, {"temperature": 0.0}, {"temperature": 0.9, "top_k": 3})
        check(session)


@kinds
def test_steady_decoding_copies_nothing(async_scheduling: bool) -> None:
    """Guard: without a reorder no parameter array is refreshed between steps."""
    with oracle.engine(async_scheduling, **OPTIONS).session() as session:
        for index in range(3):
            session.add(f"D{index}", oracle.prompt(20, index), temperature=0.5 + index / 10, max_tokens=8)
        session.step()
        session.step()
        batch = session.runner.input_batch
        refreshed = []
        real = batch.refresh_sampling_metadata
        batch.refresh_sampling_metadata = lambda: (refreshed.append(len(session.steps)), real())
        try:
            for _ in range(4):
                session.step()
        finally:
            del batch.refresh_sampling_metadata
        assert refreshed == []
        session.finish()
        check(session)


@kinds
def test_requests_that_come_and_go(async_scheduling: bool) -> None:
    """Guard: parameters stay right through arrivals and departures in which no prompt is left behind a decode."""
    with oracle.engine(async_scheduling, **OPTIONS).session() as session:
        for index in range(4):
            prompt = oracle.prompt(30 + index, index)
            session.add(f"R{index}", prompt, temperature=0.5 + index / 10, max_tokens=2 + index)
            session.step()
        session.finish()
        check(session)
        assert session.wrong_reads() == []
