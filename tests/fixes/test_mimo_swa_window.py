"""mimo-swa-window: MiMo-V2's window layers attend to their window, not to everything.

The configuration is recognised by vllm-gaudi's own function; the rest is the code that acts on it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from paged import Paged, dense
from transformers import PretrainedConfig

PATTERN = [0, 1, 1, 1, 1, 0, 1, 1]


def config(model_type: str = "mimo_v2_flash", **fields: Any) -> PretrainedConfig:
    made = PretrainedConfig(sliding_window=128, **fields)
    made.model_type = model_type
    return made


def interleaved(made: Any) -> bool:
    from vllm_gaudi.v1.worker.hpu_model_runner import is_interleaved

    return is_interleaved(made)


def paged(made: PretrainedConfig, dtype: torch.dtype = torch.float32) -> Paged:
    """The runner and the metadata processor as their constructors would set them up for this configuration."""
    from vllm_gaudi.v1.worker.hpu_model_runner import HPUAttentionMetadataProcessor

    found = Paged(128, model_type=made.model_type, dtype=dtype)
    found.runner.interleaved_sliding_window = interleaved(made) and 128
    found.processor = HPUAttentionMetadataProcessor(SimpleNamespace(
        cache_config=SimpleNamespace(block_size=128),
        model_config=SimpleNamespace(dtype=dtype, hf_text_config=made, hf_config=SimpleNamespace(),
                                     get_sliding_window=lambda: made.sliding_window)))
    return found


@pytest.mark.parametrize("model_type", ["mimo_v2", "mimo_v2_flash", "mimo_v2_mtp"])
def test_recognised(model_type: str) -> None:
    assert interleaved(config(model_type, hybrid_layer_pattern=PATTERN)) is True, "taken for a model of one layer type"


def test_decode() -> None:
    lengths = list(range(1, 701))
    step = paged(config(hybrid_layer_pattern=PATTERN)).decode(lengths)
    assert step.metadata.window_block_list is not None, "window layers attend to the full context"
    assert step.seen() == [list(range(max(0, length - 128), length)) for length in lengths]


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 3e-2)], ids=["fp32", "bf16"])
def test_decode_with_sinks(dtype: torch.dtype, bound: float) -> None:
    """MiMo's window layers have sinks, and keep two blocks; the values are dense attention's with one sink."""
    for first in range(1, 700, 50):
        lengths = range(first, first + 50)
        step = paged(config(hybrid_layer_pattern=PATTERN), dtype).decode(lengths)
        assert step.metadata.window_block_list is not None, "window layers attend to the full context"
        generator = torch.Generator().manual_seed(first)
        keys, values = (torch.randn(step.cache_slots, 2, 16, generator=generator).to(dtype) for _ in range(2))
        query = torch.randn(len(lengths), 64, generator=generator).to(dtype)
        sinks = torch.tensor([3.0, 4.0, 5.0, -2.0], dtype=dtype)
        got = step.attend(query, keys, values, sinks)
        for row, length in enumerate(lengths):
            own = step.slots(row, range(max(0, length - 128), length))
            worst = float((got[row] - dense(query[row], keys[own], values[own], sinks)).abs().max())
            assert worst < bound, f"length {length}: differs from dense attention by {worst:.1e}"


def test_prefill() -> None:
    """A prompt's mask has the window; without it, the kernel alone would have to know it, and the context's padding."""
    metadata = paged(config(hybrid_layer_pattern=PATTERN)).prefill(0, 300)
    assert metadata.window_attn_bias is not None, "window layers have no mask"
    seen = (metadata.window_attn_bias[0, 0] == 0).sum(-1).tolist()
    assert seen == [min(query + 1, 128) for query in range(300)]


# Guards.


@pytest.mark.parametrize(("model_type", "fields"), [
    ("mimo_v2", {}),
    ("mimo_v2", {"hybrid_layer_pattern": None}),
    ("mimo_v2", {"hybrid_layer_pattern": [1, 1, 1]}),
    ("mimo", {"hybrid_layer_pattern": PATTERN}),
    ("llama", {"hybrid_layer_pattern": PATTERN}),
    ("mimo_v2", {"hybrid_layer_pattern": PATTERN, "layer_types": ["full_attention", "full_attention"]}),
])
def test_others_are_not(model_type: str, fields: dict[str, Any]) -> None:
    assert interleaved(config(model_type, **fields)) is False


def test_layer_types() -> None:
    assert interleaved(config("gpt_oss", layer_types=["sliding_attention", "full_attention"])) is True
