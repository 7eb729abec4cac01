"""Attention's metadata and kernels alone: the runner's real code from block tables to masks, and the kernel on them.

    paged = Paged(window=128, contiguous=False)     # real runner and metadata processor, made without an engine
    step = paged.decode([5, 700])                   # one step; lengths include the new token
    step.seen()                                     [[0..4], [572..699]]   the positions that each row attends to
    step.attend(query, keys, values, sinks)         the real flat_pa, one row per sequence
    dense(query, keys, values, sinks)               what one row must give, in float64
    metadata = paged.prefill(300, 256)              the metadata of a prompt's chunk of 256 tokens behind 300

``full=True`` looks at the metadata of layers without a window.  Blocks are handed out so that neither layout finds a
sequence's blocks side by side.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch


class Paged:
    """The runner and the metadata processor for one window, block size, dtype and layout."""

    def __init__(self, window: int, *, contiguous: bool = False, model_type: str = "gpt_oss", block: int = 128,
                 dtype: torch.dtype = torch.float32) -> None:
        from vllm_gaudi.v1.worker import hpu_model_runner as module

        self.block, self.dtype, self.contiguous = block, dtype, contiguous
        self.module = module
        config = SimpleNamespace(model_config=SimpleNamespace(dtype=dtype, hf_config=SimpleNamespace(
            model_type=model_type)))
        self.runner = object.__new__(module.HPUModelRunner)
        vars(self.runner).update(
            vllm_config=config, model_config=config.model_config, attn_block_size=block, sliding_window=window,
            interleaved_sliding_window=bool(window), use_contiguous_pa=contiguous, device=torch.device("cpu"),
            uses_mrope=False, pin_memory=False, model_has_chunked_attention=False, num_mamba_like_layers=0,
            use_async_scheduling=False, get_dp_padding=lambda _size: 0,
            bucketing_manager=SimpleNamespace(find_decode_bucket=lambda rows, blocks, *_: (rows + 1, 1, blocks + 3)))
        self.processor = object.__new__(module.HPUAttentionMetadataProcessor)
        vars(self.processor).update(
            vllm_config=config, block_size=block, dtype=dtype, sliding_window=window,
            interleaved_sliding_window=bool(window), prefill_use_fusedsdpa=True, use_window_sdpa=False, slice_size=1024,
            slice_thld=8192)

    def decode(self, lengths: Sequence[int], tokens: Sequence[int] = ()) -> Step:
        """A step of sequences with ``lengths`` tokens, of which the last ``tokens`` (1 each) are new."""
        new = list(tokens) or [1] * len(lengths)
        most = max(-(-length // self.block) for length in lengths)
        # Sequence s has the blocks s, s + n, s + 2n, ...: interleaved, and every block has one owner.
        table = torch.arange(len(lengths) * most, dtype=torch.int32).view(most, -1).t().contiguous()
        starts = [length - count for length, count in zip(lengths, new, strict=True)]
        positions = [start + at for start, count in zip(starts, new, strict=True) for at in range(count)]
        runner = self.runner
        runner._PAD_BLOCK_ID = table.numel()
        runner.positions_cpu = torch.tensor(positions, dtype=torch.int64)
        runner.input_ids_cpu = torch.zeros(len(positions), dtype=torch.int32)
        with torch.no_grad():
            data = runner._create_decode_input_data(len(lengths), new, np.array(starts), table)
            rows = data.token_ids.shape[0]
            metadata = self.processor.process_metadata(self.module.trim_attn_metadata(data.attn_metadata), rows, 1,
                                                       runner.device, self.dtype)
        return Step(self, metadata, table, rows, max(new), positions, new)


    def prefill(self, context: int, length: int, gathered: int = 0, chunk: int = 0) -> Any:
        """The metadata of one prompt's next ``length`` tokens behind ``context`` tokens in blocks 0, 1, 2, ...

        ``gathered`` names how many of the context's last blocks windowed layers get (0: all), ``chunk`` the size of
        chunked attention's chunks (0: none).  The tokens go to the blocks after the context's.
        """
        from vllm_gaudi.v1.attention.backends.hpu_attn import HPUAttentionMetadataV1

        blocks = -(-context // self.block)
        blocks_t = torch.arange(blocks) if blocks else None
        window = {"window_block_list": blocks_t[-gathered:]} if gathered and blocks_t is not None else {}
        self.cuts_context = "window_block_list" in inspect.signature(
            HPUAttentionMetadataV1.make_prefill_metadata).parameters  # v0.24.0 always gives the whole context
        window = window if self.cuts_context else {}
        metadata = HPUAttentionMetadataV1.make_prefill_metadata(
            attn_bias=None, block_list=blocks_t, context_lens_tensor=torch.tensor([context], dtype=torch.int32),
            seq_lens_tensor=torch.tensor([length], dtype=torch.int32),
            slot_mapping=torch.arange(length)[None] + blocks * self.block, block_size=self.block, **window)
        text = SimpleNamespace(attention_chunk_size=chunk)
        self.processor.vllm_config.model_config.hf_config.text_config = text
        return self.processor.process_metadata(self.module.trim_attn_metadata(metadata), 1, length, torch.device("cpu"),
                                               self.dtype, bool(chunk))


class Step:
    """The metadata of one step, as the attention layers get it."""

    def __init__(self, paged: Paged, metadata: Any, table: torch.Tensor, rows: int, width: int, positions: list[int],
                 new: list[int]) -> None:
        self.paged, self.metadata, self.table, self.rows, self.width = paged, metadata, table, rows, width
        self.positions = positions
        #: how many KV slots the layer's cache must have: the bucket of the block list may name more than exist
        self.cache_slots = (table.numel() + 4) * paged.block
        #: batch rows that hold a token, and the sequence of each
        self.row_of = [(sequence * width + at, sequence) for sequence, count in enumerate(new) for at in range(count)]

    def part(self, name: str, full: bool = False) -> torch.Tensor:
        """One of block_list, block_groups, block_usage, block_mapping, attn_bias."""
        found: torch.Tensor = getattr(self.metadata, name if full else f"window_{name}")
        return found

    def seen(self, full: bool = False) -> list[list[int]]:
        """For each new token, the positions that its row attends to, ascending."""
        block = self.paged.block
        mapping, blocks = self.part("block_mapping", full), self.part("block_list", full).tolist()
        allowed = self.part("attn_bias", full) == 0
        place = {number: at for row in self.table.tolist() for at, number in enumerate(row)}
        found: list[list[int]] = [[] for _ in range(self.rows)]
        for index, row in mapping.nonzero().tolist():
            base = place[blocks[index]] * block
            found[row] += [base + offset for offset in allowed[index].nonzero().flatten().tolist()]
        return [sorted(found[row]) for row, _ in self.row_of]

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, sinks: torch.Tensor | None = None,
               full: bool = False) -> torch.Tensor:
        """The real flat_pa.  ``query``: [new tokens, heads * size]; ``keys``, ``values``: [blocks * block, heads, size]
        by slot.  Returns [new tokens, heads * size]."""
        rows = [row for row, _ in self.row_of]
        padded = torch.zeros(self.rows, query.shape[1], dtype=query.dtype)
        padded[rows] = query
        out = flat_pa(padded, keys, values, self.part("block_list", full), self.part("block_groups", full),
                      self.part("block_mapping", full), self.part("attn_bias", full), self.paged.block, sinks,
                      self.paged.contiguous)
        return out[rows]

    def slots(self, sequence: int, positions: Sequence[int]) -> list[int]:
        """The KV slots of a sequence's positions."""
        block, row = self.paged.block, self.table[sequence].tolist()
        return [row[at // block] * block + at % block for at in positions]


def flat_pa(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, block_list: torch.Tensor,
            block_groups: torch.Tensor, block_mapping: torch.Tensor, bias: torch.Tensor, block: int,
            sinks: torch.Tensor | None, contiguous: bool = False) -> torch.Tensor:
    """vllm-gaudi's own, with its own cache access; [rows, heads * size]."""
    from vllm_gaudi.extension import ops
    from vllm_gaudi.extension.utils import VLLMKVCache

    cache = object.__new__(VLLMKVCache)
    torch.nn.Module.__init__(cache)
    cache.use_contiguous_pa = contiguous
    fetch = cache.fetch_from_cache
    rows = query.shape[0]
    out = ops.flat_pa(query=query.unsqueeze(1), key_cache=keys, value_cache=values, block_list=block_list,
                      block_mapping=block_mapping, block_bias=bias, block_groups=block_groups, block_size=block,
                      scale=keys.shape[-1] ** -0.5, matmul_qk_op=torch.matmul, position_bias=None,
                      matmul_av_op=torch.matmul, batch2block_matmul_op=torch.matmul,
                      block2batch_matmul_op=torch.matmul, keys_fetch_func=fetch, values_fetch_func=fetch, sinks=sinks,
                      k_scales=None, v_scales=None)
    return out.reshape(rows, -1)


def dense(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, sinks: torch.Tensor | None = None
          ) -> torch.Tensor:
    """One row's attention over all of ``keys``, in float64: [heads * size], [tokens, kv heads, size] twice, [heads]."""
    size = keys.shape[-1]
    q = query.double().view(-1, size)
    group = q.shape[0] // keys.shape[1]
    k, v = (part.double().repeat_interleave(group, dim=1) for part in (keys, values))
    scores = torch.einsum("hd,thd->ht", q * size ** -0.5, k)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double().view(-1, 1)], dim=1)
    weights = scores.softmax(-1)[:, : keys.shape[0]]
    return torch.einsum("ht,thd->hd", weights, v).flatten()
