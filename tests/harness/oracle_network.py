"""The oracle's network: writes token ids to KV slots and reads them back through the attention metadata."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from oracle_tokens import BLOCK, MARK, MARK_BASE, NEVER, VOCAB, peaked


class Context(NamedTuple):
    request: str | None
    read: list[int]


class Network(torch.nn.Module):
    """Stands where the network was: writes token ids to KV slots, reads them back through the attention metadata."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.slots = torch.full((slots,), NEVER, dtype=torch.int64)
        self.contexts: list[Context] = []
        self.expected: deque[list[str]] = deque()  # who the runner says is in the next forward
        self.forwards: list[list[str]] = []
        self.reads: dict[str, list[int]] = {}
        self.logits: dict[str, Callable[[list[int]], Any]] = {}

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, **_: Any) -> torch.Tensor:
        from vllm.forward_context import get_forward_context

        meta = get_forward_context().attn_metadata
        tokens, slots = input_ids.cpu().long(), meta.slot_mapping.cpu().long().reshape(input_ids.shape)
        who = self.expected.popleft() if self.expected else []
        self.forwards.append(list(who))
        written = slots >= 0
        self.slots[slots[written]] = tokens[written]  # all writes of a forward come before its reads, as in attention
        hidden = torch.full((*input_ids.shape, 64), -1.0)
        if meta.is_prompt:
            for row, request in enumerate(who):
                length, context = int(meta.seq_lens_tensor[row]), int(meta.context_lens_tensor[row])
                before: list[int] = []
                if context:
                    before = self._blocks(meta.block_list.cpu().reshape(input_ids.shape[0], -1)[row])[:context]
                own = tokens[row, :length].tolist()
                self.reads[request] = before + own
                for at in range(length):
                    hidden[row, at, 0] = self._context(request, before + own[: at + 1])
        else:
            groups, usage = meta.block_groups.cpu(), meta.block_usage.cpu()
            listed = meta.block_list.cpu()
            for row, request in enumerate(who):
                read: list[int] = []
                for at in (groups == row).nonzero().flatten().tolist():
                    read += self._blocks(listed[at : at + 1])[: int(usage[at])]
                self.reads[request] = read
                hidden[row, 0, 0] = self._context(request, read)
        return hidden.to(input_ids.device)

    def _blocks(self, blocks: torch.Tensor) -> list[int]:
        found: list[int] = []
        for block in blocks.tolist():
            found += self.slots[block * BLOCK : (block + 1) * BLOCK].tolist()
        return found

    def _context(self, request: str, read: list[int]) -> int:
        self.contexts.append(Context(request, read))
        return len(self.contexts) - 1

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = []
        for index in hidden[:, 0].long().tolist():
            logits = torch.zeros(VOCAB)
            if index >= 0:
                context = self.contexts[index]
                own = self.logits.get(context.request or "", peaked)
                logits = torch.as_tensor(own(context.read), dtype=torch.float32).clone()
            logits[MARK] = -MARK_BASE - 1 - index
            rows.append(logits)
        return (torch.stack(rows) if rows else torch.zeros(0, VOCAB)).to(hidden.device)

    def owner(self, mark: float) -> str | None:
        index = round(-MARK_BASE - 1 - mark)
        return self.contexts[index].request if 0 <= index < len(self.contexts) else None
