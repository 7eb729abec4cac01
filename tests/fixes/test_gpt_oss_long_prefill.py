"""gpt-oss-long-prefill: a prompt that is padded beyond the hidden size is computed, and computed right.

The tiny model's hidden size is 64, its shortest prompt bucket 128, so that every prompt is such a prompt.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cpuhpu import generate, keep_float32, make_llm, parts, prompt, sampling
from vllm.model_executor.models.gpt_oss import MLPBlock


def block(hidden: int) -> Any:
    """The model's own block with an expert layer that pads its channels, as quantized ones do."""
    made = object.__new__(MLPBlock)
    torch.nn.Module.__init__(made)
    made.hidden_size, made.is_sequence_parallel = hidden, False
    made.router = lambda x: x

    def experts(hidden_states: torch.Tensor, router_logits: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(hidden_states + router_logits, (0, 3))

    made.experts = experts
    return made


@pytest.mark.parametrize("length", [9, 100])
def test_block_of_a_batch(length: int) -> None:
    """Three dimensions, as vllm-gaudi runs the model: channels are cut, not tokens."""
    x = torch.randn(2, length, 8)
    got = block(8)(x)
    assert got.shape == x.shape, f"gives {tuple(got.shape)} for {tuple(x.shape)}"
    assert torch.equal(got, 2 * x)


def test_prompts_in_the_engine() -> None:
    """Prefilled in whole buckets, the answer is that of the model on flat batches, which stock computes right too.

    In 32 bits: in bfloat16 the two ways of batching round differently, and near ties fall either way.
    """
    keep_float32()
    prompts = [prompt(40, 1), prompt(300, 2), prompt(700, 3)]
    llm = make_llm("gpt_oss", max_num_seqs=4, dtype="float32")
    got = generate(llm, prompts, sampling(logprobs=0))
    model = parts(llm).runner.model
    assert model.flatten_input is False
    model.flatten_input = True
    assert generate(llm, prompts, sampling(logprobs=0)) == got


# Guards.


@pytest.mark.parametrize("shape", [(5, 8), (300, 8)])
def test_block_of_flat_tokens(shape: tuple[int, int]) -> None:
    """Two dimensions, as vLLM runs the model."""
    x = torch.randn(*shape)
    assert torch.equal(block(8)(x), 2 * x)


def test_block_of_a_short_batch() -> None:
    x = torch.randn(2, 5, 8)
    got = block(8)(x)[..., :8]
    assert torch.equal(got, 2 * x)
