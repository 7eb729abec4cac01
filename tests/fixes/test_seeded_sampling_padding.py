"""Proof of seeded-sampling-padding: the tokens of a seeded request do not depend on how its batch is padded.

All tokens are equally likely, so what is sampled depends on the generators alone.
"""

from __future__ import annotations

from typing import Any

import oracle
import pytest
import torch

kinds = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])

LENGTH = 10


def flat(_: list[int]) -> torch.Tensor:
    return torch.zeros(oracle.VOCAB)


def seeded(session: oracle.Session, name: str, seed: int | None, **params: Any) -> None:
    session.add(name, oracle.prompt(20, ord(name)), logits=flat,
                **{"temperature": 1.0, "seed": seed, "max_tokens": LENGTH, **params})


def tokens(async_scheduling: bool, others: int, **params: Any) -> list[int]:
    """What A says with seed 1, beside so many others."""
    with oracle.engine(async_scheduling).session() as session:
        seeded(session, "A", 1)
        for index in range(others):
            seeded(session, chr(ord("B") + index), None, **params)
        session.finish()
        return session.outputs["A"]


@kinds
@pytest.mark.parametrize("others", [2, 4])
def test_alone_and_beside_others(async_scheduling: bool, others: int) -> None:
    alone, got = tokens(async_scheduling, 0), tokens(async_scheduling, others)
    assert got == alone, f"A got {got} beside {others} others, and {alone} alone"


@kinds
def test_bucket_changes_meanwhile(async_scheduling: bool) -> None:
    """Others end before it does."""
    alone, got = tokens(async_scheduling, 0), tokens(async_scheduling, 4, max_tokens=3)
    assert got == alone, f"A got {got}, and {alone} alone"


@kinds
def test_generators_of_own_rows_only(async_scheduling: bool) -> None:
    """What the sampler is given for a padded batch of decodes."""
    with oracle.engine(async_scheduling).session() as session:
        seeded(session, "A", 1)
        for name in "BCDE":
            seeded(session, name, None)
        session.step()
        [call] = session.step().samplings
        assert len(call.owners) > 5, "not the scenario: the batch was to be padded"
        rows = sorted(call.metadata.generators)
        assert rows == [0], f"rows {rows} have a generator, not [0]"


# Guards: stock does these right.


@kinds
@pytest.mark.parametrize("others", [1, 3, 5])
def test_batch_without_padding(async_scheduling: bool, others: int) -> None:
    assert tokens(async_scheduling, others) == tokens(async_scheduling, 0)


@kinds
def test_every_row_seeded(async_scheduling: bool) -> None:
    """Each request has its own generator, in each kind of step."""
    with oracle.engine(async_scheduling).session() as session:
        for index, name in enumerate("ABCD"):
            seeded(session, name, index + 1)
        session.step()
        [call] = session.step().samplings
        seeds = {row: generator.initial_seed() for row, generator in call.metadata.generators.items()}
        assert seeds == {0: 1, 1: 2, 2: 3, 3: 4}


@kinds
def test_seed_behind_the_first_row(async_scheduling: bool) -> None:
    """Padding repeats the first request only."""
    with oracle.engine(async_scheduling).session() as session:
        for name in "BCD":
            seeded(session, name, None)
        seeded(session, "A", 1)
        seeded(session, "E", None)
        session.step()
        [call] = session.step().samplings
        assert sorted(call.metadata.generators) == [3]


@kinds
def test_no_seed(async_scheduling: bool) -> None:
    with oracle.engine(async_scheduling).session() as session:
        for name in "ABC":
            seeded(session, name, None)
        session.step()
        [call] = session.step().samplings
        assert call.metadata.generators == {}
