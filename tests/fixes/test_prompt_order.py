"""Proof of prompt-order: a prompt that hits blocks of its own step finds them written.

"Writer" and "Reader" share full KV blocks that the scheduler gives to both in one step.  In every test Reader's forward
must see its own tokens; on stock it sees what was in the blocks before.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import oracle
import pytest

SHARED = oracle.prompt(2 * oracle.BLOCK, 50)
WRITER = SHARED + oracle.prompt(40, 51)
READER = SHARED + oracle.prompt(20, 52)

kinds = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])


def together(step: oracle.Step) -> None:
    """Not the scenario if the two are not prompts of one step, the writer first, or nothing was shared."""
    order = list(step.scheduled)
    assert "Writer" in order, f"not the scenario: {order}"
    assert order.index("Writer") < order.index("Reader"), f"not the scenario: {order}"


def check(session: oracle.Session, *greedy: str) -> None:
    """Every forward read its own request's tokens, and greedy requests got the tokens that follow from them."""
    session.finish()
    wrong = session.wrong_reads()
    assert not wrong, oracle.told(wrong)
    wrong = session.wrong_outputs(*greedy)
    assert not wrong, oracle.told(wrong)


def swap(session: oracle.Session, **params: Any) -> oracle.Step:
    """Two requests end, Writer and Reader take their rows in front of one that decodes."""
    for index in range(3):
        session.add(f"D{index}", oracle.prompt(20, index), max_tokens=2 if index < 2 else 12)
    session.step()
    session.step()
    session.add("Writer", WRITER, **{"max_tokens": 6, **params.get("writer", {})})
    session.add("Reader", READER, **{"max_tokens": 6, **params.get("reader", {})})
    step = session.step()
    together(step)
    assert step.scheduled["Reader"] == 20, "not the scenario: no hit on the shared blocks"
    return step


@kinds
def test_swap_of_decodes(async_scheduling: bool) -> None:
    """Way a: the swap that brings decodes to the front turns two prompts round."""
    with oracle.engine(async_scheduling).session() as session:
        swap(session)
        check(session)


@kinds
def test_hole_filling(async_scheduling: bool) -> None:
    """Way b: a new request takes a freed row in front of the chunked prompt that the scheduler served first."""
    with oracle.engine(async_scheduling).session() as session:
        long = oracle.prompt(1500, 53)
        session.add("D", oracle.prompt(20, 1), max_tokens=1)
        session.add("Writer", [*long, 9], max_tokens=4)
        session.step()
        session.add("Reader", [*long, 7, 7, 7], max_tokens=4)
        step = session.step()
        together(step)
        assert step.scheduled["Reader"] < oracle.BLOCK, "not the scenario: no hit on the writer's new blocks"
        check(session)


@kinds
def test_resumed_before_new(async_scheduling: bool) -> None:
    """Way c: the scheduler resumed a preempted request first; the runner adds new requests before resumed ones."""
    with oracle.engine(async_scheduling).session() as session:
        session.add("D", oracle.prompt(20, 1), max_tokens=16)
        session.add("Writer", WRITER, max_tokens=8)
        for _ in range(3):
            session.step()
        held = session.preempt("Writer", lost=[0, 1])
        session.step()
        session.resume(held)
        session.add("Reader", READER, max_tokens=4)
        step = session.step()
        together(step)
        assert step.scheduled["Reader"] == 20, "not the scenario: no hit on the shared blocks"
        check(session)


@kinds
def test_rotation_of_catching_up(async_scheduling: bool) -> None:
    """Way d: two requests that catch up on several tokens are turned round when a one-token decode moves in front.

    They decoded the same tokens, were preempted and kept only their first block; they come back when two rows in front
    of a decode become free.  The test ends with that step: what the runner samples from such rows is another matter.
    """
    with oracle.engine(async_scheduling).session() as session:
        for name in ("Writer", "Reader"):
            session.add(name, oracle.prompt(120, 54), max_tokens=170)
        while len(session.outputs["Reader"]) < 150:
            session.step()
        held = session.preempt("Writer", "Reader", lost=[1])
        for index in range(3):
            session.add(f"D{index}", oracle.prompt(20, index), max_tokens=2 if index < 2 else 12)
        session.step()
        session.step()
        session.resume(held)
        step = session.step()
        together(step)
        assert 1 < step.scheduled["Reader"] < oracle.BLOCK < step.scheduled["Writer"] < 2 * oracle.BLOCK, step.scheduled
        wrong = session.wrong_reads()
        assert not wrong, oracle.told(wrong)


@kinds
def test_outputs_reach_their_requests(async_scheduling: bool) -> None:
    """Tokens, parameters and the next step's inputs stay with their request when rows are put back in order."""
    with oracle.engine(async_scheduling).session() as session:
        swap(
            session,
            writer={"temperature": 0.7, "allowed_token_ids": [10, 11, 12]},
            reader={"temperature": 0.9, "allowed_token_ids": [20, 21, 22]},
        )
        session.finish()
        assert set(session.outputs["Writer"]) <= {10, 11, 12}, f"Writer got {session.outputs['Writer']}"
        assert set(session.outputs["Reader"]) <= {20, 21, 22}, f"Reader got {session.outputs['Reader']}"
        assert len(session.outputs["Writer"]) == len(session.outputs["Reader"]) == 6
        wrong = session.wrong_parameters()
        assert not wrong, oracle.told(wrong)
        check(session, "D0", "D1", "D2")


@kinds
def test_three_in_a_chain(async_scheduling: bool) -> None:
    """Each of three prompts reads blocks of the ones before it, and all three are out of order."""
    with oracle.engine(async_scheduling).session() as session:
        for index in range(4):
            session.add(f"D{index}", oracle.prompt(20, index), max_tokens=2 if index < 3 else 12)
        session.step()
        session.step()
        blocks = [oracle.prompt(oracle.BLOCK, 60 + index) for index in range(3)]
        for index in range(3):
            session.add(f"P{index}", [*chain.from_iterable(blocks[: index + 1]), *[5] * (index + 1)], max_tokens=3)
        step = session.step()
        assert step.scheduled == {"D3": 1, "P0": 129, "P1": 130, "P2": 131}
        check(session)


@kinds
def test_order_needs_rows_refresh(async_scheduling: bool) -> None:
    """Guard: stock keeps these rows in place; putting the prompts in order moves a partial one after the refresh."""
    with oracle.engine(async_scheduling, long_prefill_token_threshold=512).session() as session:
        session.add("D", oracle.prompt(20, 1), max_tokens=1)
        session.add("P", oracle.prompt(1200, 2), max_tokens=4, temperature=0.9, top_k=5)
        session.step()
        session.add("N", oracle.prompt(20, 3), max_tokens=6, temperature=0.3, top_p=0.5)
        step = session.step()
        assert list(step.scheduled) == ["P", "N"], "not the scenario: the running prompt comes first"
        session.finish()
        wrong = session.wrong_parameters()
        assert not wrong, oracle.told(wrong)
        check(session)


@kinds
def test_ordered_prompts_stay(async_scheduling: bool) -> None:
    """Guard: where the rows are in the scheduler's order already, nothing is swapped."""
    with oracle.engine(async_scheduling).session() as session:
        batch = session.runner.input_batch
        swaps: list[tuple[int, int]] = []
        real = batch.swap_states

        def swap_states(first: int, second: int) -> None:
            swaps.append((first, second))
            real(first, second)

        batch.swap_states = swap_states
        try:
            session.add("D", oracle.prompt(20, 1), max_tokens=8)
            session.step()
            session.add("Writer", WRITER, max_tokens=3)
            session.add("Reader", READER, max_tokens=3)
            step = session.step()
            together(step)
            session.finish()
        finally:
            del batch.swap_states
        assert swaps == []
        assert step.forwards == [["Writer"], ["Reader"], ["D"]]
        check(session)
