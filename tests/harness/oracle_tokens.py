"""The oracle's language: which token follows which, and how tokens are told in a message."""

from __future__ import annotations

from collections.abc import Sequence

import torch

BLOCK = 128  # tokens per KV block, vllm-gaudi's own size
VOCAB = 512
NEVER = -7  # the content of a KV slot that nobody wrote
MARK = VOCAB - 1  # logits[:, MARK] says whose row it is; far too low ever to be sampled
MARK_BASE = 10_000.0


def next_token(read: Sequence[int]) -> int:
    """The token that greedy decoding gives after `read`: depends on every token and its place."""
    value = 0
    for token in read:
        value = (value * 31 + token + 11) % 1_000_003
    return 3 + value % 500


def right_tokens(prompt: Sequence[int], count: int) -> list[int]:
    """What a greedy request with this prompt must generate when it reads its own tokens."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


def peaked(read: Sequence[int]) -> torch.Tensor:
    """The default logits: `next_token` far above all others."""
    logits = torch.zeros(VOCAB)
    logits[next_token(read)] = 50.0
    return logits


def short(tokens: Sequence[int]) -> str:
    """A list of tokens for a message, runs folded: "[3, 4, never written x128]"."""
    parts: list[str] = []
    at = 0
    while at < len(tokens):
        run = at
        while run < len(tokens) and tokens[run] == tokens[at]:
            run += 1
        name = "never written" if tokens[at] == NEVER else str(tokens[at])
        parts.append(name if run - at == 1 else f"{name} x{run - at}")
        at = run
    if len(parts) > 12:
        parts = [*parts[:6], "...", *parts[-5:]]
    return "[" + ", ".join(parts) + "]"


def told(found: Sequence[str], limit: int = 4) -> str:
    """The first findings, for an assertion's message."""
    more = f" (and {len(found) - limit} more)" if len(found) > limit else ""
    return "; ".join(found[:limit]) + more
