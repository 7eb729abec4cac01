"""Proof of seeded-cache-reset: a reset of the prefix cache does not change the tokens of a seeded request.

All tokens are equally likely, so what is sampled depends on the generators alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import oracle
import pytest
import torch

kinds = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])

LENGTH = 14


def flat(_: list[int]) -> torch.Tensor:
    return torch.zeros(oracle.VOCAB)


def tokens(async_scheduling: bool, resets: Sequence[int], neighbour: bool = False, prompt: int = 20) -> list[int]:
    """What S says with seed 1 when the prefix cache is reset before these steps, the running requests with it."""
    with oracle.engine(async_scheduling, long_prefill_token_threshold=64).session() as session:
        session.add("S", oracle.prompt(prompt, 1), logits=flat, temperature=1.0, seed=1, max_tokens=LENGTH)
        if neighbour:
            session.add("N", oracle.prompt(30, 2), logits=flat, temperature=1.0, max_tokens=LENGTH + 3)
        for step in range(max(resets, default=0)):
            if step in resets:
                assert session.scheduler.reset_prefix_cache(reset_running_requests=True)
            session.step()
        session.finish()
        return session.outputs["S"]


def check(got: list[int], whole: list[int]) -> None:
    assert got == whole, f"S got {got}, and {whole} without a reset"


@pytest.mark.parametrize("step", [3, 5, 9])
def test_reset_while_a_token_is_in_flight(step: int) -> None:
    check(tokens(True, [step, 12]), tokens(True, []))


def test_two_resets() -> None:
    check(tokens(True, [4, 5, 12]), tokens(True, []))


def test_reset_with_an_unseeded_neighbour() -> None:
    check(tokens(True, [5, 12], neighbour=True), tokens(True, [], neighbour=True))


def test_prompt_in_chunks() -> None:
    check(tokens(True, [7, 14], prompt=150), tokens(True, [], prompt=150))


def test_module_sets_back_what_is_drawn_again() -> None:
    from vllm_gaudi._fixpack.seeded_reset import IN_FLIGHT, rewind

    generator = torch.Generator().manual_seed(1)
    runner = SimpleNamespace(use_async_scheduling=True, requests={"S": 0, "N": 0},
                             input_batch=SimpleNamespace(generators={0: generator}, req_ids=["S", "N"]))

    def draw(*counts: int, scheduled: bool = True) -> float:
        cached = SimpleNamespace(req_ids=["S", "N"] if counts else [], num_output_tokens=list(counts))
        work = {"S": 1, "N": 1} if scheduled else {"N": 1}
        rewind(runner, SimpleNamespace(scheduled_cached_reqs=cached, num_scheduled_tokens=work))
        return float(torch.rand(1, generator=generator))

    drawn = [draw(), draw(1, 1), draw(2, 2)]
    assert draw(2, 2) == drawn[2], "drawn once more, the same number"
    assert draw(1, 1) == drawn[1], "two draws were thrown away"
    assert draw(2, 2) == drawn[2]
    for count in range(3, 20):
        assert draw(count, count) not in drawn
    assert len(runner._seeded_draws["S"].states) == IN_FLIGHT
    runner.input_batch.generators = {0: torch.Generator().manual_seed(1)}
    generator = runner.input_batch.generators[0]
    assert draw() == drawn[0], "another request with the same id"
    generator.set_state(torch.Generator().manual_seed(2).get_state())
    state = generator.get_state()
    draw(0, 0, scheduled=False)
    assert not torch.equal(generator.get_state(), state)
    assert len(runner._seeded_draws["S"].states) == 1
    runner.requests = {"N": 0}
    runner.input_batch.generators = {}
    draw()
    assert runner._seeded_draws == {}


# Guards: stock does these right.


@kinds
def test_no_reset(async_scheduling: bool) -> None:
    check(tokens(async_scheduling, [], prompt=21), tokens(async_scheduling, []))


def test_reset_in_synchronous_scheduling() -> None:
    """Nothing is in flight then."""
    check(tokens(False, [5, 12]), tokens(False, []))
