"""Proof of allowed-tokens-recycled-row: a request in a row that was moved away from is not restricted by it."""

from __future__ import annotations

import oracle
import pytest

kinds = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])

C_ONLY = [10, 11]


def check(session: oracle.Session, *free: str) -> None:
    """Every request was sampled with its own allowed tokens, and free ones got what follows from their own tokens."""
    session.finish()
    wrong = session.wrong_parameters()
    assert not wrong, oracle.told(wrong)
    wrong = session.wrong_outputs(*free)
    assert not wrong, oracle.told(wrong)
    assert set(session.outputs["C"]) <= set(C_ONLY)


def moved(session: oracle.Session, rows: int = 3, length: int = 30) -> None:
    """C, restricted, is in the last row; others end, and C is moved to the front."""
    for index in range(rows - 1):
        session.add(f"A{index}", oracle.prompt(20, index), max_tokens=40)
    session.add("C", oracle.prompt(20, 9), max_tokens=length, allowed_token_ids=C_ONLY)
    session.step()
    session.step()
    session.abort("A0")
    assert session.step().rows[0] == "C", "not the scenario: C was to be moved to the first row"


@kinds
def test_new_request_beside_the_restricted_one(async_scheduling: bool) -> None:
    with oracle.engine(async_scheduling).session() as session:
        moved(session)
        session.add("N", oracle.prompt(30, 11), max_tokens=6)
        session.step()
        check(session, "N", "A1")


@kinds
def test_new_request_after_the_restricted_one(async_scheduling: bool) -> None:
    """C has ended; a request with other allowed tokens brings its mask back to life."""
    with oracle.engine(async_scheduling).session() as session:
        moved(session, length=5)
        while "C" in session.scheduler.requests:
            session.step()
        session.add("N", oracle.prompt(30, 11), max_tokens=6)
        session.add("M", oracle.prompt(30, 12), max_tokens=6)
        session.add("E", oracle.prompt(30, 13), max_tokens=6, allowed_token_ids=[20])
        session.step()
        check(session, "N", "M", "A1")


@kinds
def test_several_rows_moved(async_scheduling: bool) -> None:
    with oracle.engine(async_scheduling).session() as session:
        for index in range(2):
            session.add(f"A{index}", oracle.prompt(20, index), max_tokens=40)
        for name, own in (("B", [30]), ("C", C_ONLY)):
            session.add(name, oracle.prompt(20, ord(name)), max_tokens=30, allowed_token_ids=own)
        session.step()
        session.step()
        session.abort("A0", "A1")
        assert set(session.step().rows) == {"B", "C"}
        for index in range(2):
            session.add(f"N{index}", oracle.prompt(30 + index, 11 + index), max_tokens=6)
        session.step()
        check(session, "N0", "N1")


@kinds
def test_resumed_request(async_scheduling: bool) -> None:
    """Not only new ones: a preempted request that comes back takes the row, too."""
    with oracle.engine(async_scheduling).session() as session:
        moved(session, rows=4)
        held = session.preempt("A2", lost=[0])
        session.abort("A1")
        session.step()
        session.resume(held)
        session.add("N", oracle.prompt(30, 11), max_tokens=6)
        session.add("M", oracle.prompt(30, 12), max_tokens=6)
        session.step()
        check(session, "A2", "N", "M")


# Guards: stock does these right.


@kinds
def test_row_of_one_that_ended(async_scheduling: bool) -> None:
    """A row that is freed, not moved, is cleared."""
    with oracle.engine(async_scheduling).session() as session:
        session.add("A", oracle.prompt(20, 1), max_tokens=12)
        session.add("C", oracle.prompt(20, 9), max_tokens=12, allowed_token_ids=C_ONLY)
        session.add("B", oracle.prompt(20, 2), max_tokens=3, allowed_token_ids=[30])
        while "B" in session.scheduler.requests:
            session.step()
        session.add("N", oracle.prompt(30, 11), max_tokens=6)
        session.step()
        check(session, "N", "A")


@kinds
def test_restricted_request_in_the_row(async_scheduling: bool) -> None:
    with oracle.engine(async_scheduling).session() as session:
        moved(session)
        session.add("N", oracle.prompt(30, 11), max_tokens=6, allowed_token_ids=[20, 21])
        session.step()
        check(session, "A1")
        assert set(session.outputs["N"]) <= {20, 21}


@kinds
def test_nobody_restricted(async_scheduling: bool) -> None:
    with oracle.engine(async_scheduling).session() as session:
        for index in range(3):
            session.add(f"A{index}", oracle.prompt(20, index), max_tokens=12)
        session.add("C", oracle.prompt(20, 9), max_tokens=1, allowed_token_ids=C_ONLY)
        session.step()
        session.step()
        session.abort("A0")
        session.add("N", oracle.prompt(30, 11), max_tokens=6)
        session.step()
        check(session, "N", "A1", "A2")
