"""Proof of rank-exception-fatal: the engine stops when a rank raises and another one is to reply.

Two worker processes under the real MultiprocExecutor.  In each case rank 1 raises; the executor must fail, and rank 1
must take no further step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ranks

SOON = 60.0  # seconds; the executor is quicker by far, the machine may be slow

modes = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])


@pytest.fixture(scope="module")
def lab() -> Iterator[ranks.Lab]:
    with ranks.Lab() as made:
        yield made


def check_failed(executor: Any, failed: ranks.Failed) -> None:
    """Rank 1 took no other call, and the engine was told."""
    process = executor.workers[1].proc
    went_on = ranks.goes_on(executor, 1)
    assert not went_on, "rank 1 goes on after its exception"
    assert failed.within(SOON), "the engine was not told"
    assert executor.is_failed
    process.join(SOON)
    assert process.exitcode == 1


@modes
def test_rank_0_answers(lab: ranks.Lab, async_scheduling: bool) -> None:
    """The reply is there, and looks like any other."""

    @lab.run
    def scenario() -> None:
        with ranks.executor(async_scheduling) as (executor, failed):
            assert executor.sample_tokens({}) == 1
            executor.sample_tokens({1: "raise"}, non_block=True)
            check_failed(executor, failed)


def test_teardown_blocks(lab: ranks.Lab) -> None:
    """Rank 1 cannot end in an orderly way, because its peer does not take part."""

    @lab.run
    def scenario() -> None:
        with ranks.executor() as (executor, failed):
            executor.collective_rpc("hold_teardown", args=(1,))
            executor.sample_tokens({1: "raise"}, non_block=True)
            check_failed(executor, failed)


def test_rank_0_is_stuck(lab: ranks.Lab) -> None:
    """Rank 0 waits for rank 1, and the caller for rank 0: the caller gets an error."""

    @lab.run
    def scenario() -> None:
        with ranks.executor() as (executor, failed):
            waiting = executor.sample_tokens({0: "stick", 1: "raise"}, non_block=True)
            check_failed(executor, failed)
            with pytest.raises(RuntimeError, match="cancelled"):
                waiting.result()


def test_step_that_is_a_function(lab: ranks.Lab) -> None:
    """The name of the call is not known then."""

    @lab.run
    def scenario() -> None:
        with ranks.executor() as (executor, failed):
            executor.collective_rpc(ranks.raise_on_rank_1, unique_reply_rank=0, non_block=True)
            check_failed(executor, failed)


# Guards: stock does these right.


@modes
def test_nobody_raises(lab: ranks.Lab, async_scheduling: bool) -> None:
    @lab.run
    def scenario() -> None:
        with ranks.executor(async_scheduling) as (executor, failed):
            assert [executor.sample_tokens({}) for _ in range(5)] == [1, 2, 3, 4, 5]
            assert executor.collective_rpc("look", args=({},)) == [(0, 5), (1, 5)]
            executor.check_health()
            assert not failed.told


def test_rank_that_replies_raises(lab: ranks.Lab) -> None:
    """The caller gets the error, and decides."""

    @lab.run
    def scenario() -> None:
        with ranks.executor() as (executor, failed):
            with pytest.raises(RuntimeError, match="rank 0 was told to"):
                executor.sample_tokens({0: "raise"})
            assert executor.collective_rpc("look", args=({},)) == [(0, 0), (1, 1)]
            assert not failed.told


def test_call_to_which_all_reply(lab: ranks.Lab) -> None:
    """The caller gets the error of rank 1, and both ranks live on."""

    @lab.run
    def scenario() -> None:
        with ranks.executor() as (executor, failed):
            with pytest.raises(RuntimeError, match="rank 1 was told to"):
                executor.collective_rpc("look", args=({1: "raise"},))
            assert executor.collective_rpc("look", args=({},)) == [(0, 0), (1, 0)]
            assert not failed.told
