"""fsdpa-window-slicing: a long prompt's window layers keep their window when attention is run in slices.

vllm-gaudi's own attention layer, its masks and its slicing run on a plain fused attention; the slices are small.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from paged import Paged
from vllm_gaudi.attention.backends.hpu_attn import HPUAttentionImpl
from vllm_gaudi.extension import utils

HEADS, KV_HEADS, SIZE = 4, 2, 64
CONTEXT, LENGTH = 1024, 512


def slicing(self: Any) -> bool:
    """What the real one sets, without a bucketing manager: slices of 256, padding in the outermost of them."""
    self.slice_thld, self.chunk_size = 512, 256
    self.num_padded_query_chunks = self.num_padded_ctx_chunks = 1
    self._with_graph_breaks = False
    return True


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    with mock.patch.object(utils.SlicedFusedSDPABase, "_setup_slicing", slicing):
        yield


def layer(window: int | None) -> HPUAttentionImpl:
    return HPUAttentionImpl(HEADS, SIZE, SIZE ** -0.5, KV_HEADS, None, window, "auto")


def chunked_layer() -> HPUAttentionImpl:
    """Marked by the runner's own function, as Llama 4's layers are."""
    from vllm_gaudi.v1.worker.hpu_model_runner import maybe_set_chunked_attention_layers

    made = layer(None)
    backend = type("ChunkedLocalAttention_of_a_test", (), {})
    attn = SimpleNamespace(get_attn_backend=lambda: backend, impl=made)
    layers = [SimpleNamespace(self_attn=SimpleNamespace(attn=attn))]
    maybe_set_chunked_attention_layers(SimpleNamespace(model=SimpleNamespace(
        config=SimpleNamespace(text_config=SimpleNamespace(attention_chunk_size=384)),
        language_model=SimpleNamespace(model=SimpleNamespace(layers=layers)))))
    assert made.is_chunked_attention
    return made


def difference(made: HPUAttentionImpl, metadata: Any, bias: torch.Tensor) -> float:
    """The largest difference from plain attention with this mask, in float64."""
    generator = torch.Generator().manual_seed(2)
    context = bias.shape[-1] - LENGTH
    slots = context + LENGTH + 128
    caches = [torch.randn(slots, KV_HEADS, SIZE, generator=generator, dtype=torch.float32) for _ in range(2)]
    query = torch.randn(1, LENGTH, HEADS * SIZE, generator=generator, dtype=torch.float32)
    key, value = (torch.randn(1, LENGTH, KV_HEADS * SIZE, generator=generator, dtype=torch.float32) for _ in range(2))
    got = made.forward(None, query, key, value, (*caches, None, None), metadata)
    q = query.double().view(LENGTH, HEADS, SIZE).transpose(0, 1)
    k, v = (torch.cat([cache[:context], new.view(LENGTH, KV_HEADS, SIZE)]).double().transpose(0, 1).repeat_interleave(
        HEADS // KV_HEADS, dim=0) for cache, new in zip(caches, (key, value), strict=True))
    scores = q @ k.transpose(1, 2) * SIZE ** -0.5 + bias[0].double()
    wanted = (scores.softmax(-1) @ v).transpose(0, 1).reshape(1, LENGTH, -1)
    return float((got - wanted).abs().max())


def test_window() -> None:
    metadata = Paged(128).prefill(CONTEXT, LENGTH)
    worst = difference(layer(128), metadata, metadata.window_attn_bias)
    assert worst < 1e-5, f"differs from masked attention by {worst:.2f}"


def test_chunked_attention() -> None:
    """Its mask is no plain causal one either."""
    metadata = Paged(0).prefill(CONTEXT, LENGTH, chunk=384)
    worst = difference(chunked_layer(), metadata, metadata.chunked_attn_bias)
    assert worst < 1e-5, f"differs from masked attention by {worst:.2f}"


# Guards.


def test_full_attention_is_sliced() -> None:
    metadata = Paged(128).prefill(CONTEXT, LENGTH)
    made = layer(None)
    sliced = made.fused_scaled_dot_product_attention._sliced_module
    with mock.patch.object(sliced, "forward", wraps=sliced.forward) as forward:
        worst = difference(made, metadata, metadata.attn_bias)
    assert forward.call_count == 1
    assert worst < 1e-5


def test_short_prompts() -> None:
    """Nothing is sliced below the threshold."""
    with mock.patch.object(utils.SlicedFusedSDPABase, "_setup_slicing", return_value=False):
        metadata = Paged(128).prefill(CONTEXT, LENGTH)
        assert difference(layer(128), metadata, metadata.window_attn_bias) < 1e-5
        assert difference(layer(None), metadata, metadata.attn_bias) < 1e-5
