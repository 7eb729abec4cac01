"""Proof of resumed-rows-reset: requests that a reset preempts and resumes in one step use their new blocks only."""

from __future__ import annotations

import oracle
import pytest

kinds = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])


def check(session: oracle.Session) -> None:
    """Every forward read its own request's tokens, and every request got the tokens that follow from them."""
    session.finish()
    wrong = session.wrong_reads()
    assert not wrong, oracle.told(wrong)
    wrong = session.wrong_outputs()
    assert not wrong, oracle.told(wrong)
    for name, made in session.requests.items():
        assert len(session.outputs[name]) == made.max_tokens


def reset(session: oracle.Session) -> None:
    """What EngineCore.reset_prefix_cache does between two steps; with async scheduling a step is in flight."""
    assert session.scheduler.reset_prefix_cache(reset_running_requests=True)


def decoding(session: oracle.Session, length: int) -> None:
    """Three requests of about that many tokens, which decode for some steps already."""
    for index, name in enumerate("ABC"):
        session.add(name, oracle.prompt(length + index, index), max_tokens=12)
    for _ in range(4):
        session.step()


def blocks(session: oracle.Session) -> dict[str, tuple[list[int], list[int]]]:
    """Per request of the batch: the blocks of its row, and the ones that the scheduler gave it."""
    batch, found = session.runner.input_batch, {}
    for name, row in batch.req_id_to_index.items():
        given = session.scheduler.kv_cache_manager.get_block_ids(name)[0]
        table = batch.block_table[0]
        found[name] = (table.get_numpy_array()[row, : table.num_blocks_per_row[row]].tolist(), list(given))
    return found


@kinds
def test_reset_during_decoding(async_scheduling: bool) -> None:
    with oracle.engine(async_scheduling).session() as session:
        decoding(session, 150)
        reset(session)
        assert sorted(session.step().scheduled) == ["A", "B", "C"], "not the scenario: all were to be resumed at once"
        check(session)


@kinds
def test_blocks_of_the_rows(async_scheduling: bool) -> None:
    with oracle.engine(async_scheduling).session() as session:
        decoding(session, 150)
        reset(session)
        session.step()
        for name, (row, given) in blocks(session).items():
            assert row == given, f"{name}'s row has blocks {row}, not {given}"


@kinds
def test_row_of_all_blocks(async_scheduling: bool) -> None:
    """The row has no room for the new blocks behind the old ones."""
    with oracle.engine(async_scheduling, max_model_len=256, num_gpu_blocks_override=8).session() as session:
        decoding(session, 150)
        reset(session)
        check(session)


@kinds
def test_new_request_takes_the_old_blocks(async_scheduling: bool) -> None:
    """Others get the blocks that the reset freed; both must read their own."""
    with oracle.engine(async_scheduling).session() as session:
        decoding(session, 20)
        reset(session)
        session.add("N", oracle.prompt(200, 5), max_tokens=12)
        session.step()
        check(session)


@kinds
def test_reset_in_the_middle_of_a_prompt(async_scheduling: bool) -> None:
    """A chunked prompt starts again; its first chunk is the same, its blocks are not."""
    with oracle.engine(async_scheduling).session() as session:
        session.add("D", oracle.prompt(20, 1), max_tokens=8)
        session.add("P", oracle.prompt(1500, 2), max_tokens=4)
        session.step()
        reset(session)
        session.step()
        check(session)


def test_parameters_stay() -> None:
    """A row that is made anew keeps its request's parameters."""
    with oracle.engine(True).session() as session:
        for index, (name, temperature) in enumerate([("A", 0.3), ("B", 0.7), ("C", 0.9)]):
            session.add(name, oracle.prompt(20 + index, index), temperature=temperature, top_k=index + 1,
                        allowed_token_ids=[10 * (index + 1)], max_tokens=10)
        for _ in range(4):
            session.step()
        reset(session)
        session.finish()
        wrong = session.wrong_parameters()
        assert not wrong, oracle.told(wrong)
        for index, name in enumerate("ABC"):
            assert session.outputs[name] == [10 * (index + 1)] * 10
        wrong = session.wrong_reads()
        assert not wrong, oracle.told(wrong)


# Guards: stock does these right.


@kinds
def test_preemption_and_resumption_in_two_steps(async_scheduling: bool) -> None:
    with oracle.engine(async_scheduling).session() as session:
        for index, name in enumerate("AB"):
            session.add(name, oracle.prompt(150 + index, index), max_tokens=10)
        for _ in range(4):
            session.step()
        held = session.preempt("B", lost=[0, 1])
        session.step()
        session.resume(held)
        session.step()
        check(session)


@kinds
def test_nothing_resumed(async_scheduling: bool) -> None:
    """No row is made anew when nothing was resumed."""
    with oracle.engine(async_scheduling).session() as session:
        batch, removed = session.runner.input_batch, []
        real = batch.remove_request

        def remove_request(name: str) -> int | None:
            removed.append(name)
            return real(name)

        batch.remove_request = remove_request
        try:
            for index, name in enumerate("AB"):
                session.add(name, oracle.prompt(150 + index, index), max_tokens=6)
            while session.scheduler.running or session.scheduler.waiting:
                session.step()
                assert not removed or not session.scheduler.running
        finally:
            del batch.remove_request
        check(session)
