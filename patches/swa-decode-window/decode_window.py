"""The blocks that a sliding window needs in decode, and what is to be masked in the first of them.

Decode attends to whole KV blocks and masks the rest of the newest one only.  A window that starts inside a block needs
its oldest block's first positions masked too.  The usage of a block says how many of its first positions count; here a
negative usage -h says that its first h do not.  That rides through padding and both paged-attention layouts unchanged,
and every value is exact in bfloat16 for blocks of up to 256.
"""

from __future__ import annotations

from collections.abc import Sequence


class WindowTables(list[list[int]]):
    """Block tables that are cut to a window, and its length in tokens."""

    window: int = 0


def window_tables(tables: Sequence[list[int]], slots: Sequence[Sequence[int]], block_size: int,
                  window: int) -> WindowTables:
    """For each row, the last blocks that its window touches.

    ``slots`` holds the row's slot in the KV cache, whose place in its block says how much of the newest block is used.
    There may be more slots (padding) than tables.
    """
    cut = WindowTables()
    cut.window = window
    for table, slot in zip(tables, slots, strict=False):
        older = window - (slot[0] % block_size + 1)  # tokens of the window before the newest block
        keep = 1 + max(0, -(-older // block_size))
        cut.append(table[-keep:])
    return cut


def mark_heads(tables: Sequence[list[int]], usage: Sequence[list[int]]) -> None:
    """Give each row's first block a negative usage where the window starts inside it.

    ``usage`` has one list per table that is not empty.  Tables that are not cut to a window are left alone.
    """
    window = getattr(tables, "window", 0)
    if not window:
        return
    for row in usage:
        head = sum(row) - window
        if head > 0 and len(row) > 1:
            row[0] = -head
