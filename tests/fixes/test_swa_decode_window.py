"""swa-decode-window: in decode, a sliding-window layer attends to the last W tokens, the query's own included.

The runner's own code makes the block tables, the metadata and the masks; the kernel is vllm-gaudi's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from paged import Paged, Step, dense

layouts = pytest.mark.parametrize("contiguous", [False, True], ids=["by-id", "contiguous"])
WINDOWS = {128: 700, 200: 700, 512: 1100, 1024: 1400}  # and the longest sequence
HEADS, KV_HEADS, SIZE = 4, 2, 16


def ranges(found: Sequence[Sequence[int]]) -> list[tuple[int, int, int]]:
    """(first, last, count) of each row."""
    return [(row[0], row[-1], len(row)) if row else (0, 0, 0) for row in found]


def check(step: Step, window: int, lengths: Sequence[int]) -> None:
    """Each row sees exactly the last ``window`` of its ``lengths`` positions."""
    wanted = [(max(0, length - window), length - 1, min(length, window)) for length in lengths]
    wrong = [f"length {length}: attends to {count} keys, {first} to {last}, not {want[2]}"
             for length, (first, last, count), want in zip(lengths, ranges(step.seen()), wanted, strict=True)
             if (first, last, count) != want]
    assert not wrong, f"{len(wrong)} of {len(lengths)} rows: {wrong[0]}; ...; {wrong[-1]}"


@layouts
@pytest.mark.parametrize("model_type", ["gpt_oss", "gemma3_text"])
@pytest.mark.parametrize("window", [128, 200, 512, 1024])
def test_every_length(window: int, model_type: str, contiguous: bool) -> None:
    lengths = range(1, WINDOWS[window] + 1)
    check(Paged(window, model_type=model_type, contiguous=contiguous).decode(lengths), window, lengths)


@layouts
def test_bfloat16_usage(contiguous: bool) -> None:
    """The usage of a block travels in the model's dtype, whose integers are exact to 256 only."""
    lengths = range(3800, 4060)
    check(Paged(1024, contiguous=contiguous, dtype=torch.bfloat16).decode(lengths), 1024, lengths)


def test_block_of_256() -> None:
    lengths = range(400, 1100)
    check(Paged(512, block=256, dtype=torch.bfloat16).decode(lengths), 512, lengths)


@pytest.mark.parametrize("tokens", [2, 3, 4])
def test_rows_of_speculative_decoding(tokens: int) -> None:
    """Several new tokens of a sequence are several rows; each has its own window."""
    lengths = [138, 140, 255, 384, 500, 640]
    new = [tokens, 1, tokens, tokens - 1, tokens, 1]
    step = Paged(128).decode(lengths, new)
    check(step, 128, [position + 1 for position in step.positions])


def values(contiguous: bool, dtype: torch.dtype, window: int, lengths: Sequence[int]) -> float:
    """The largest difference from dense attention over the window."""
    generator = torch.Generator().manual_seed(window)
    step = Paged(window, contiguous=contiguous, dtype=dtype).decode(lengths)
    slots = step.cache_slots
    keys, vals = (torch.randn(slots, KV_HEADS, SIZE, generator=generator).to(dtype) for _ in range(2))
    query = (torch.randn(len(lengths), HEADS * SIZE, generator=generator)).to(dtype)
    got = step.attend(query, keys, vals)
    assert got.isfinite().all()
    worst = 0.0
    for row, length in enumerate(lengths):
        own = step.slots(row, range(max(0, length - window), length))
        worst = max(worst, float((got[row] - dense(query[row], keys[own], vals[own])).abs().max()))
    return worst


@layouts
@pytest.mark.parametrize("window", [128, 200])
def test_values(window: int, contiguous: bool) -> None:
    worst = max(values(contiguous, torch.float32, window, range(first, first + 50)) for first in range(1, 700, 50))
    assert worst < 1e-6, f"differs from dense attention by {worst:.1e}"


@pytest.mark.parametrize("window", [512, 1024])
def test_values_of_large_windows(window: int) -> None:
    lengths = [1, 127, 128, 129, window - 1, window, window + 1, window + 100, window + 128, window + 129, 2000, 2048]
    worst = values(False, torch.float32, window, lengths)
    assert worst < 1e-6, f"differs from dense attention by {worst:.1e}"


def test_values_in_bfloat16() -> None:
    worst = max(values(False, torch.bfloat16, 128, range(first, first + 50)) for first in range(1, 700, 50))
    assert worst < 3e-2, f"differs from dense attention by {worst:.1e}"


def test_newest_block_full() -> None:
    """No block may be masked as a whole: its largest score would be -inf, and the difference of two is no number."""
    step = Paged(128).decode([256, 384, 512])
    check(step, 128, [256, 384, 512])
    assert (step.part("attn_bias") == 0).any(dim=1).all()


# Guards.


@layouts
def test_layers_without_a_window(contiguous: bool) -> None:
    """The block list of full attention is what it was."""
    lengths = range(1, 700)
    step = Paged(128, contiguous=contiguous).decode(lengths)
    assert step.seen(full=True) == [list(range(length)) for length in lengths]
    assert (step.part("block_usage", full=True) > 0).all()


def test_models_without_a_window() -> None:
    step = Paged(0).decode([5, 700])
    assert step.metadata.window_block_list is None
    assert step.seen(full=True) == [list(range(5)), list(range(700))]


def test_other_callers() -> None:
    """The draft model's proposer calls the same helper with plain tables."""
    runner = Paged(128).runner
    runner._PAD_BLOCK_ID = 9
    blocks, groups, usage = runner.get_habana_paged_attn_buffers([[3, 4], [5]], [[4 * 128 + 9], [5 * 128]], 2)
    assert blocks.tolist() == [3, 4, 5, 9, 9, 9]
    assert groups.tolist() == [0, 0, 1, -1, -1, -1]
    assert usage.tolist() == [128, 10, 1, 1, 1, 1]


def test_graph() -> None:
    """The mask is made inside the compiled forward: one graph, for every number of blocks."""
    paged = Paged(128)
    step = paged.decode([129, 300])
    usage, groups = step.part("block_usage"), step.part("block_groups")

    def bias(usage: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        fields = {"window_block_usage": usage, "window_block_groups": groups}
        metadata = paged.module.custom_tuple_replace(step.metadata, "TrimmedAttentionMetadata", **fields)
        made = paged.processor._set_block_mapping(metadata, step.rows, usage.device, torch.float32, True)
        return made.window_attn_bias

    with torch._dynamo.config.patch(disable=False):
        compiled = torch.compile(bias, backend="eager", fullgraph=True, dynamic=True)
        assert torch.equal(compiled(usage, groups), step.part("attn_bias"))
        assert torch.equal(compiled(usage[:3], groups[:3]), step.part("attn_bias")[:3])
