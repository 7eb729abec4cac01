"""Put a step's prompts back into the order in which the scheduler allocated them.

The scheduler hashes a request's KV blocks when it schedules them, so a later request of the same step
may already hit them.  The runner executes one forward per prefill sub-batch, in row order: a reader
sees the writer's KV only if the writer's row comes first.  The order of ``num_scheduled_tokens`` is
the order of allocation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Batch(Protocol):
    """What is needed of the runner's input batch."""

    req_id_to_index: dict[str, int]

    def swap_states(self, i1: int, i2: int) -> None: ...


class Partition(Protocol):
    """What is needed of the runner's split into decodes (first rows) and prompts (the rows after)."""

    prompt_req_ids: list[str]
    decode_req_ids: list[str]
    prompt_scheduled_tokens: list[int]


def restore_scheduler_order(batch: Batch, partition: Partition, num_scheduled_tokens: Mapping[str, int]) -> bool:
    """Swap the prompts' rows until they follow the scheduler's order, and update the partition.

    The rows themselves are moved, because everything after this point takes row order for execution
    order.  Decodes stay where they are.  Nothing is touched if the order is already right.

    Returns whether any row was moved.
    """
    current = partition.prompt_req_ids
    if len(current) < 2:
        return False
    prompts = set(current)
    wanted = [req_id for req_id in num_scheduled_tokens if req_id in prompts]
    if wanted == current:
        return False
    for row, req_id in enumerate(wanted, start=len(partition.decode_req_ids)):
        now = batch.req_id_to_index[req_id]
        if now != row:
            batch.swap_states(row, now)
    partition.prompt_req_ids = wanted
    partition.prompt_scheduled_tokens = [int(num_scheduled_tokens[req_id]) for req_id in wanted]
    return True
