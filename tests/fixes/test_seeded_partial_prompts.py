"""Proof of seeded-partial-prompts: the tokens of a seeded request do not depend on the chunks of its prompt.

All tokens are equally likely, so what is sampled depends on the generators alone.  In synchronous scheduling chunks are
sampled in structured steps only, where stock has other faults too: test_system.py has that case, with every fix.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import oracle
import pytest
import torch

kinds = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])

PROMPT = 700
LENGTH = 6
WHOLE, CHUNKS = 1024, 256  # tokens of a prompt in a step


def flat(_: list[int]) -> torch.Tensor:
    return torch.zeros(oracle.VOCAB)


def seeded(session: oracle.Session, name: str, length: int, number: int, seed: int | None, **params: Any) -> None:
    session.add(name, oracle.prompt(length, number), logits=flat,
                **{"temperature": 1.0, "seed": seed, "max_tokens": LENGTH, **params})


def tokens(async_scheduling: bool, threshold: int, structured: int = 0, others: int = 0) -> list[int]:
    """What S says with seed 1, its prompt in pieces of ``threshold``; D decodes beside it, with a grammar in the first
    ``structured`` steps, and so many others with a seed and the same prompt length come with S."""
    with oracle.engine(async_scheduling, long_prefill_token_threshold=threshold).session() as session:
        session.add("D", oracle.prompt(20, 1), max_tokens=16)
        session.step()
        session.step()
        seeded(session, "S", PROMPT, 2, 1)
        for index in range(others):
            seeded(session, chr(ord("T") + index), PROMPT, 3 + index, 2 + index)
        for _ in range(structured):
            session.step(grammar={"D": []})
        session.finish()
        return session.outputs["S"]


@pytest.mark.parametrize("threshold", [128, CHUNKS])
def test_chunks_async(threshold: int) -> None:
    whole, got = tokens(True, WHOLE), tokens(True, threshold)
    assert got == whole, f"S got {got} with its prompt in chunks, and {whole} in one piece"


def test_chunks_in_structured_steps() -> None:
    whole, got = tokens(True, WHOLE), tokens(True, CHUNKS, structured=2)
    assert got == whole, f"S got {got} with its prompt in chunks, and {whole} in one piece"


def test_two_prompts_in_chunks() -> None:
    whole, got = tokens(True, WHOLE, others=1), tokens(True, CHUNKS, others=1)
    assert got == whole, f"S got {got} with its prompt in chunks, and {whole} in one piece"


def test_generators_of_a_chunk() -> None:
    """What the sampler is given after a chunk that does not end its prompt, and after the one that does."""
    with oracle.engine(True, long_prefill_token_threshold=CHUNKS).session() as session:
        seeded(session, "S", PROMPT, 2, 1)
        seen = [sorted(call.metadata.generators) for _ in range(3) for call in session.step().samplings]
        assert seen == [[], [], [0]], f"rows with a generator: {seen}, not [[], [], [0]]"


def test_module_notes_unfinished_prompts_only() -> None:
    from vllm_gaudi._fixpack.seeded_prompts import leave_out_unfinished, note_unfinished

    names = ["D", "P", "E", "R", "N"]
    made = [torch.Generator() for _ in names]
    runner = SimpleNamespace(
        input_batch=SimpleNamespace(
            req_id_to_index={name: row for row, name in enumerate(names)},
            num_prompt_tokens=[9, 700, 700, 100, 700],
            num_tokens_no_spec=[10, 700, 700, 140, 700],
            num_computed_tokens_cpu=[9, 256, 512, 0, 0],
            generators=dict(enumerate(made[:4])),
        )
    )
    rows = {3: made[0], 0: made[1], 1: made[2], 2: made[3]}
    leave_out_unfinished(runner, rows)
    assert sorted(rows) == [0, 1, 2, 3], "nothing was noted"
    note_unfinished(runner, names[1:], {"D": 1, "P": 256, "E": 188, "R": 120, "N": 256})
    leave_out_unfinished(runner, rows)
    assert {row: id(generator) for row, generator in rows.items()} == {3: id(made[0]), 1: id(made[2])}
    note_unfinished(runner, [], {})
    rows = {0: made[1]}
    leave_out_unfinished(runner, rows)
    assert rows == {0: made[1]}


# Guards: stock does these right.


def test_chunks_sync() -> None:
    """A chunk has no row of logits there."""
    assert tokens(False, CHUNKS) == tokens(False, WHOLE)


@kinds
def test_seeds_differ(async_scheduling: bool) -> None:
    """Each request keeps its own generator once its prompt is finished."""
    with oracle.engine(async_scheduling, long_prefill_token_threshold=CHUNKS).session() as session:
        for index, name in enumerate("ABCD"):
            seeded(session, name, 20, index, index + 1)
        session.step()
        [call] = session.step().samplings
        seeds = {row: generator.initial_seed() for row, generator in call.metadata.generators.items()}
        assert seeds == {0: 1, 1: 2, 2: 3, 3: 4}
