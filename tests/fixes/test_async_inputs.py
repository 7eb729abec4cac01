"""Proof of async-inputs: a decode that had no part in the step before is fed its own last token.

The network reads back what was written to the KV cache, so a wrong input shows as a wrong read of that position.
"""

from __future__ import annotations

import oracle
import pytest


def check(session: oracle.Session) -> None:
    """Every forward read its own request's tokens, and every request got the tokens that follow from them."""
    session.finish()
    wrong = session.wrong_reads()
    assert not wrong, oracle.told(wrong)
    wrong = session.wrong_outputs()
    assert not wrong, oracle.told(wrong)


def decodes(session: oracle.Session, count: int, steps: int = 3, **params: int) -> list[str]:
    """That many requests, decoding for some steps already."""
    names = [f"D{index}" for index in range(count)]
    for index, name in enumerate(names):
        session.add(name, oracle.prompt(20 + index, index), **{"max_tokens": 12, **params})
    for _ in range(steps):
        session.step()
    return names


def test_skipped_step() -> None:
    """The last row leaves and comes back to the same place: its own previous input is still in the buffer."""
    with oracle.engine(True).session() as session:
        decodes(session, 3)
        session.skip("D2")
        assert list(session.step().scheduled) == ["D0", "D1"]
        assert session.step().rows == ["D0", "D1", "D2"]
        check(session)


def test_skipped_step_of_the_first_row() -> None:
    """Another request takes its row meanwhile, and it comes back to a row that was another one's."""
    with oracle.engine(True).session() as session:
        decodes(session, 3)
        session.skip("D0")
        assert list(session.step().scheduled) == ["D1", "D2"]
        assert session.step().rows == ["D2", "D1", "D0"]
        check(session)


def test_skipped_step_beside_a_moved_row() -> None:
    """Some inputs come from the host, the others from the last step's tokens, and these in another order."""
    with oracle.engine(True).session() as session:
        decodes(session, 4)
        session.skip("D0", "D2")
        session.step()
        session.abort("D3")
        step = session.step()
        assert sorted(step.scheduled) == ["D0", "D1", "D2"]
        check(session)


def test_nobody_of_the_step_before() -> None:
    """No request of this step was in the last one."""
    with oracle.engine(True).session() as session:
        names = decodes(session, 2)
        session.add("A", oracle.prompt(30, 9), max_tokens=1)
        session.skip(*names)
        assert list(session.step().scheduled) == ["A"]
        assert list(session.step().scheduled) == names
        check(session)


def test_every_second_step() -> None:
    """Left out again and again."""
    with oracle.engine(True).session() as session:
        names = decodes(session, 4, max_tokens=16)
        for turn in range(8):
            session.skip(names[turn % 4], names[(turn + 2) % 4])
            session.step()
        check(session)


def test_one_token_left_after_preemption() -> None:
    """A resumed request whose blocks are still cached but for one token is a decode at once."""
    with oracle.engine(True).session() as session:
        session.add("D", oracle.prompt(20, 1), max_tokens=40)
        session.add("R", oracle.prompt(120, 2), max_tokens=20)
        while len(session.tokens("R")) < oracle.BLOCK:
            session.step()
        held = session.preempt("R")
        session.step()
        session.resume(held)
        step = session.step()
        assert step.scheduled == {"D": 1, "R": 1}, "not the scenario: one token of R was to be left"
        check(session)


def test_preempted_for_lack_of_a_block() -> None:
    """The scheduler's own preemption: two answers to one prompt, and no second block for the later one.

    It comes back when the other one is done, and hits the block that the other one has filled with the same tokens.
    """
    with oracle.engine(True, max_model_len=256, num_gpu_blocks_override=4).session() as session:
        session.add("A", oracle.prompt(120, 3), max_tokens=20)
        session.step()
        session.add("B", oracle.prompt(120, 3), max_tokens=20)
        session.finish()
        assert session.requests["B"].num_preemptions == 1, "not the scenario: B was to be preempted"
        back = next(step for step in session.steps if list(step.scheduled) == ["B"])
        assert back.scheduled == {"B": 1}, "not the scenario: one token of B was to be left"
        check(session)


def test_prompt_that_starts_as_a_decode() -> None:
    """A KV connector's request of which everything but the last token came from elsewhere."""
    with oracle.engine(True).session() as session:
        shared = oracle.prompt(oracle.BLOCK, 7)
        session.add("A", [*shared, 9], max_tokens=8)
        session.step()
        session.step()
        session.add("B", [*shared, 11], max_tokens=4)
        session.runner.input_batch.req_type["B"] = "decode"  # as the connector's metadata has it
        step = session.step()
        assert step.scheduled == {"A": 1, "B": 1}
        assert step.forwards == [["A", "B"]], "not the scenario: B was to run with the decodes"
        check(session)


# Guards: stock does these right.


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
def test_nobody_left_out(async_scheduling: bool) -> None:
    """Arrivals, ends, swaps and chunks, and every running request in every step."""
    with oracle.engine(async_scheduling).session() as session:
        decodes(session, 3, max_tokens=5)
        session.add("P", oracle.prompt(1500, 8), max_tokens=6)
        session.step()
        session.add("A", oracle.prompt(40, 9), max_tokens=6)
        session.step()
        session.abort("D1")
        check(session)


def test_skipped_step_synchronous() -> None:
    """Without asynchronous scheduling all inputs come from the host."""
    with oracle.engine(False).session() as session:
        decodes(session, 3)
        for name in ("D2", "D0", "D1"):
            session.skip(name)
            session.step()
            session.step()
        check(session)


def test_skipped_prompt() -> None:
    """A chunked prompt that was left out takes its tokens from the host anyway."""
    with oracle.engine(True).session() as session:
        decodes(session, 2)
        session.add("P", oracle.prompt(1500, 8), max_tokens=4)
        session.step()
        session.skip("P")
        assert "P" not in session.step().scheduled
        check(session)
