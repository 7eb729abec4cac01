"""A small MiMo-V2 whose loading code is the release's own: fused FP8 qkv_proj weights, as the Pro checkpoint has them.

The model class, its ``load_weights``, the loader that groups the stream by name and the sharding of the projections
are real.  The decoder layers hold only what that code touches: attention and experts need kernels to be constructed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, V_HEAD_DIM, BLOCK = 256, 4, 2, 192, 128, 128
CHUNK = HEADS // KV_HEADS * HEAD_DIM + HEAD_DIM + V_HEAD_DIM  # rows of one KV head's [Q | K | V]: 5.5 blocks, as in Pro
ROWS = KV_HEADS * CHUNK
VOCABULARY = 32

Weights = list[tuple[str, torch.Tensor]]


class Config:
    """What the loading code reads of the model's configuration."""

    def __init__(self, layers: int) -> None:
        self.num_hidden_layers = layers
        self.num_key_value_heads = KV_HEADS
        self.n_routed_experts = 0
        self.tie_word_embeddings = False


def _parameter(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.zeros(*shape).to(dtype), requires_grad=False)


def _layer() -> nn.Module:
    layer, attention, projection = nn.Module(), nn.Module(), nn.Module()
    projection.weight = _parameter(ROWS, HIDDEN, dtype=torch.float8_e4m3fn)
    projection.weight_scale_inv = _parameter(-(-ROWS // BLOCK), HIDDEN // BLOCK)
    attention.qkv_proj = projection
    attention.total_num_heads, attention.total_num_kv_heads = HEADS, KV_HEADS
    attention.head_dim, attention.v_head_dim = HEAD_DIM, V_HEAD_DIM
    layer.self_attn = attention
    layer.input_layernorm = nn.Module()
    layer.input_layernorm.weight = _parameter(HIDDEN)
    return layer


def build(patch: pytest.MonkeyPatch, layers: int) -> Any:
    """A MiMoV2ForCausalLM with so many layers, all weights zero; one rank."""
    from vllm.model_executor.models import mimo_v2, utils

    # kept by id(model): a test's model may have the address of an earlier test's
    patch.setattr(utils, "_model_to_pp_missing_layer_names", {})
    patch.setattr(mimo_v2, "get_tensor_model_parallel_rank", lambda: 0)
    patch.setattr(mimo_v2, "get_tensor_model_parallel_world_size", lambda: 1)
    config = Config(layers)
    inner = mimo_v2.MiMoV2Model.__new__(mimo_v2.MiMoV2Model)
    nn.Module.__init__(inner)
    inner.config = config
    inner.get_expert_mapping = list  # no experts in these layers
    inner.layers = nn.ModuleList([_layer() for _ in range(layers)])
    model = mimo_v2.MiMoV2ForCausalLM.__new__(mimo_v2.MiMoV2ForCausalLM)
    nn.Module.__init__(model)
    model.config = config
    model.model = inner
    model.lm_head = nn.Module()
    model.lm_head.weight = _parameter(VOCABULARY, HIDDEN)
    return model


class Checkpoint:
    """Random weights, by layer, in the checkpoint's own layout and names."""

    def __init__(self, layers: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        scale_rows = KV_HEADS * -(-CHUNK // BLOCK)
        self.layers = range(layers)
        self.weights = [
            torch.randn(ROWS, HIDDEN, generator=generator).to(torch.float8_e4m3fn) for _ in self.layers
        ]
        self.scales = [
            torch.rand(scale_rows, HIDDEN // BLOCK, generator=generator) + 0.5 for _ in self.layers
        ]
        self.norms = [torch.rand(HIDDEN, generator=generator) for _ in self.layers]
        self.head = torch.randn(VOCABULARY, HIDDEN, generator=generator)

    def weight(self, layer: int) -> Weights:
        """The projection's FP8 values."""
        return [(f"model.layers.{layer}.self_attn.qkv_proj.weight", self.weights[layer])]

    def scale(self, layer: int) -> Weights:
        """Their scales, one for each block of 128 by 128 of each chunk."""
        return [(f"model.layers.{layer}.self_attn.qkv_proj.weight_scale_inv", self.scales[layer])]

    def norm(self, layer: int) -> Weights:
        """A weight that is not fused."""
        return [(f"model.layers.{layer}.input_layernorm.weight", self.norms[layer])]

    def lm_head(self) -> Weights:
        """A weight outside of the decoder."""
        return [("lm_head.weight", self.head)]

    def in_order(self) -> Iterator[tuple[str, torch.Tensor]]:
        """As a file lists them: the decoder layer by layer, then the head."""
        for layer in self.layers:
            yield from (*self.norm(layer), *self.weight(layer), *self.scale(layer))
        yield from self.lm_head()

    def reference(self, layer: int) -> torch.Tensor:
        """The projection in 32 bits as the forward wants it: all Q, then all K, then all V."""
        scale_rows = -(-CHUNK // BLOCK)
        parts: list[list[torch.Tensor]] = [[], [], []]
        query = HEADS // KV_HEADS * HEAD_DIM
        for chunk in range(KV_HEADS):
            values = self.weights[layer][chunk * CHUNK : (chunk + 1) * CHUNK].float()
            scales = self.scales[layer][chunk * scale_rows : (chunk + 1) * scale_rows]
            full = values * scales.repeat_interleave(BLOCK, 0)[:CHUNK].repeat_interleave(BLOCK, 1)
            for part, rows in zip(parts, full.split([query, HEAD_DIM, V_HEAD_DIM]), strict=True):
                part.append(rows)
        return torch.cat([row for part in parts for row in part])


def projection(model: Any, layer: int) -> torch.Tensor:
    """What a layer's fused projection holds now, in 32 bits."""
    found = model.model.layers[layer].self_attn.qkv_proj
    scales = found.weight_scale_inv.repeat_interleave(BLOCK, 0)[:ROWS].repeat_interleave(BLOCK, 1)
    return found.weight.float() * scales


def error(model: Any, checkpoint: Checkpoint, layer: int) -> float:
    """How far a layer's projection is from the checkpoint's, as a part of its norm; FP8 rounding alone gives 0.03."""
    wanted = checkpoint.reference(layer)
    return float((projection(model, layer) - wanted).norm() / wanted.norm())
