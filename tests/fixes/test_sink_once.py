"""sink-once: an attention sink counts once per sequence in decode, however many KV blocks it has.

The kernel is vllm-gaudi's own; the reference is dense attention with one more logit, in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from paged import Paged, dense, flat_pa

BLOCKS = [1, 1, 2, 3, 5, 10, 100]
BLOCK, SIZE = 128, 16
shapes = pytest.mark.parametrize("kv_heads", [2, 8], ids=["grouped", "one-to-one"])


def differences(kv_heads: int, dtype: torch.dtype, copies: Sequence[float], blocks: Sequence[int] = BLOCKS,
                contiguous: bool = False) -> list[float]:
    """Per sequence, the largest difference from dense attention that has ``copies`` of the sink."""
    generator = torch.Generator().manual_seed(7)
    step = Paged(0, contiguous=contiguous, dtype=dtype).decode([128 * count - 37 for count in blocks])
    slots = step.cache_slots
    keys, values = (torch.randn(slots, kv_heads, SIZE, generator=generator).to(dtype) for _ in range(2))
    query = (torch.randn(len(blocks), 8 * SIZE, generator=generator)).to(dtype)
    sinks = (6 + torch.rand(8, generator=generator)).to(dtype)
    got = step.attend(query, keys, values, sinks, full=True)
    found = []
    for row, count in enumerate(blocks):
        own = step.slots(row, range(128 * count - 37))
        wanted = dense(query[row], keys[own], values[own], sinks.double() + torch.tensor(copies[row]).log())
        found.append(float((got[row] - wanted).abs().max()))
    return found


def told(found: Sequence[float]) -> str:
    return ", ".join(f"{value:.1e}" for value in found)


ONCE = [1.0] * len(BLOCKS)


@pytest.mark.parametrize("contiguous", [False, True], ids=["by-id", "contiguous"])
@shapes
def test_one_sink(kv_heads: int, contiguous: bool) -> None:
    found = differences(kv_heads, torch.float32, ONCE, contiguous=contiguous)
    assert max(found) < 1e-6, f"differs by {told(found)}"


@shapes
def test_one_sink_in_bfloat16(kv_heads: int) -> None:
    found = differences(kv_heads, torch.bfloat16, ONCE)
    assert max(found) < 5e-3, f"differs by {told(found)}"


def test_one_sink_with_softmax_in_float32() -> None:
    from vllm_gaudi.extension import ops

    config = SimpleNamespace(fp32_softmax=True, fused_block_softmax=False, fused_block_softmax_adjustment=False)
    with mock.patch.object(ops, "get_config", return_value=config):
        found = differences(2, torch.bfloat16, ONCE)
    assert max(found) < 5e-3, f"differs by {told(found)}"


def test_rows_of_speculative_decoding() -> None:
    """Several rows share a sequence's blocks; each has its own sink."""
    generator = torch.Generator().manual_seed(3)
    step = Paged(0).decode([300, 700], [3, 3])
    slots = step.cache_slots
    keys, values = (torch.randn(slots, 2, SIZE, generator=generator) for _ in range(2))
    query = torch.randn(len(step.positions), 8 * SIZE, generator=generator)
    sinks = torch.full((8,), 6.0)
    got = step.attend(query, keys, values, sinks, full=True)
    for index, (position, (_, sequence)) in enumerate(zip(step.positions, step.row_of, strict=True)):
        own = step.slots(sequence, range(position + 1))
        worst = float((got[index] - dense(query[index], keys[own], values[own], sinks)).abs().max())
        assert worst < 1e-6, f"row {index} differs by {worst:.1e}"


def test_extreme_sinks() -> None:
    """A sink far above or below all scores, and none at all (-inf)."""
    generator = torch.Generator().manual_seed(4)
    step = Paged(0).decode([1000, 20])
    slots = step.cache_slots
    keys, values = (torch.randn(slots, 8, SIZE, generator=generator) for _ in range(2))
    query = torch.randn(2, 8 * SIZE, generator=generator)
    sinks = torch.tensor([-float("inf"), -80.0, -5.0, 0.0, 5.0, 8.0, 30.0, 80.0])
    got = step.attend(query, keys, values, sinks, full=True)
    assert got.isfinite().all()
    for row, length in enumerate([1000, 20]):
        own = step.slots(row, range(length))
        worst = float((got[row] - dense(query[row], keys[own], values[own], sinks)).abs().max())
        assert worst < 1e-6, f"row {row} differs by {worst:.1e}"


# Guards.


def test_first_block() -> None:
    """Sequences of one block are as on stock, to the last bit: the log of one is zero."""
    found = differences(2, torch.float32, ONCE, [1, 1, 1])
    assert max(found) < 1e-6


@shapes
def test_without_sinks(kv_heads: int) -> None:
    generator = torch.Generator().manual_seed(5)
    step = Paged(0).decode([500, 3])
    slots = step.cache_slots
    keys, values = (torch.randn(slots, kv_heads, SIZE, generator=generator) for _ in range(2))
    query = torch.randn(2, 8 * SIZE, generator=generator)
    got = step.attend(query, keys, values, None, full=True)
    for row, length in enumerate([500, 3]):
        own = step.slots(row, range(length))
        assert float((got[row] - dense(query[row], keys[own], values[own])).abs().max()) < 1e-6


def test_graph() -> None:
    """flat_pa is part of a compiled graph, with changing numbers of blocks."""
    step = Paged(0).decode([500, 3])
    keys = torch.randn(step.cache_slots, 2, SIZE)
    parts = [step.part(name, full=True) for name in ("block_list", "block_groups", "block_mapping", "attn_bias")]
    query, sinks = torch.randn(step.rows, 8 * SIZE), torch.zeros(8)

    def run(query: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
        return flat_pa(query, keys, keys, *parts, BLOCK, sinks)

    with torch._dynamo.config.patch(disable=False):
        compiled = torch.compile(run, backend="eager", dynamic=True)
        assert torch.equal(compiled(query, *parts), run(query, *parts))
