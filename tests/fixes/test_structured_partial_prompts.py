"""Proof of structured-partial-prompts: chunks of a prompt give no token, whether or not a step is structured.

"P" is a prompt in three chunks; "D" decodes beside it; "A" is a prompt that ends in the step in which it starts.
"""

from __future__ import annotations

import oracle
import pytest

OPTIONS = {"long_prefill_token_threshold": 256}

kinds = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])


def start(session: oracle.Session) -> None:
    """D decodes, P is in the queue."""
    session.add("D", oracle.prompt(20, 1), max_tokens=12)
    session.step()
    session.step()
    session.add("P", oracle.prompt(700, 2), max_tokens=4)


def check(session: oracle.Session) -> None:
    """Every request got the tokens that follow from its own prompt, and as many as it asked for."""
    session.finish()
    wrong = session.wrong_outputs()
    assert not wrong, oracle.told(wrong)
    wrong = session.wrong_reads()
    assert not wrong, oracle.told(wrong)
    for name, made in session.requests.items():
        assert len(session.outputs[name]) == made.max_tokens, f"{name} got {len(session.outputs[name])} tokens"


def test_step_after_a_structured_one() -> None:
    with oracle.engine(False, **OPTIONS).session() as session:
        start(session)
        session.step(grammar={"D": []})
        session.step()
        assert session.outputs["P"] == [], f"P got {session.outputs['P']} after two chunks of three"
        check(session)


def test_structured_steps_in_a_row() -> None:
    with oracle.engine(False, **OPTIONS).session() as session:
        start(session)
        session.step(grammar={"D": []})
        session.step(grammar={"D": []})
        assert session.outputs["P"] == [], f"P got {session.outputs['P']} after two chunks of three"
        session.step(grammar={"D": []})
        assert len(session.outputs["P"]) == 1
        check(session)


def test_grammar_behind_a_chunk() -> None:
    """The first structured step; the request of the grammar is behind the prompt in chunks."""
    with oracle.engine(False, **OPTIONS).session() as session:
        start(session)
        session.add("A", oracle.prompt(30, 3), max_tokens=1)
        session.add("B", oracle.prompt(30, 4), max_tokens=4)
        session.step(grammar={"A": [400]})
        assert session.outputs["A"] == [400], f"A got {session.outputs['A']}, not what its grammar allows"
        session.finish()
        wrong = session.wrong_outputs("D", "P", "B")
        assert not wrong, oracle.told(wrong)


def test_grammar_in_the_last_row() -> None:
    """There is no row of logits at the place of the grammar's."""
    with oracle.engine(False, **OPTIONS).session() as session:
        start(session)
        session.add("A", oracle.prompt(30, 3), max_tokens=1)
        session.step(grammar={"A": [400]})
        assert session.outputs["A"] == [400], f"A got {session.outputs['A']}, not what its grammar allows"


def test_structured_now_and_then() -> None:
    with oracle.engine(False, **OPTIONS).session() as session:
        start(session)
        session.add("Q", oracle.prompt(1500, 5), max_tokens=4)
        for turn in range(6):
            session.step(grammar={"D": []} if turn % 2 else None)
        check(session)


def test_module_drops_unfinished_prompts_only() -> None:
    from types import SimpleNamespace

    from vllm_gaudi._fixpack.partial_prompts import drop_partial

    batch = SimpleNamespace(
        req_id_to_index={"D": 0, "P": 1, "E": 2, "R": 3},
        num_computed_tokens_cpu=[9, 256, 512, 128],
        num_tokens_no_spec=[10, 700, 700, 140],
    )
    sampled = [[1], [2], [3], [4]]
    drop_partial(batch, ["P", "E", "R"], {"D": 1, "P": 256, "E": 188, "R": 11}, sampled)
    assert sampled == [[1], [], [3], []]


# Guards: stock does these right.


@kinds
def test_chunks_without_structured_output(async_scheduling: bool) -> None:
    with oracle.engine(async_scheduling, **OPTIONS).session() as session:
        start(session)
        check(session)


@kinds
def test_whole_prompts_in_structured_steps(async_scheduling: bool) -> None:
    with oracle.engine(async_scheduling, **OPTIONS).session() as session:
        session.add("D", oracle.prompt(20, 1), max_tokens=12)
        session.step()
        session.step()
        session.add("A", oracle.prompt(30, 3), max_tokens=4)
        session.step(grammar={"D": []})
        session.step(grammar={"D": []})
        check(session)


def test_asynchronous_chunks_in_structured_steps() -> None:
    """There, every chunk has a row of logits, and its token is discarded."""
    with oracle.engine(True, **OPTIONS).session() as session:
        start(session)
        for turn in range(4):
            session.step(grammar={"D": []} if turn % 2 else None)
        check(session)
