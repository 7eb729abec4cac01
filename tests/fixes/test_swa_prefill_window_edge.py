"""swa-prefill-window-edge: a prompt's chunk sees the same window of its context as of itself.

The masks are those of vllm-gaudi's own metadata processor.
"""

from __future__ import annotations

import pytest
from paged import Paged


def check(window: int, context: int, length: int, gathered: int = 0) -> None:
    """Query at position p sees p - window + 1 to p."""
    paged = Paged(window)
    bias = paged.prefill(context, length, gathered).window_attn_bias[0, 0]
    blocks = -(-context // paged.block)
    kept = min(blocks, gathered or blocks) if paged.cuts_context else blocks
    first = (blocks - kept) * paged.block  # the position of the first column
    frame = kept * paged.block
    wrong = []
    for query in range(length):
        columns = (bias[query] == 0).nonzero().flatten().tolist()
        seen = [first + column if column < frame else context + column - frame for column in columns]
        wanted = list(range(max(0, context + query - window + 1), context + query + 1))
        if seen != wanted:
            wrong.append(f"query {query} sees {len(seen)} keys from {seen[0]} on, "
                         f"not {len(wanted)} from {wanted[0]} on")
    assert not wrong, f"{len(wrong)} of {length}: {wrong[0]}"


@pytest.mark.parametrize("context", [384, 300, 128, 129, 1000])
@pytest.mark.parametrize("window", [128, 200])
def test_context(window: int, context: int) -> None:
    check(window, context, 256)


def test_long_context() -> None:
    check(1024, 2000, 256)


@pytest.mark.parametrize("context", [1300, 1280, 2048])
def test_context_that_is_cut_to_the_window(context: int) -> None:
    """Gemma 4's layers with a window fetch only the last blocks of the context."""
    check(1024, context, 256, gathered=9)


# Guards.


def test_context_within_the_window() -> None:
    check(1024, 300, 256)


def test_no_context() -> None:
    check(128, 0, 300)


def test_full_attention() -> None:
    bias = Paged(128).prefill(300, 200).attn_bias[0, 0]
    seen = (bias == 0).sum(-1)
    assert seen.tolist() == [300 + query + 1 for query in range(200)]
