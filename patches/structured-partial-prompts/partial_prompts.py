"""Throw away what was sampled after a chunk that does not end its prompt.

In a structured step every request has a row of logits, so that the grammar's masks and the rows of the batch agree; a
chunk's row is there for that alone.  Asynchronous scheduling discards its token by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Batch(Protocol):
    """What is needed of the runner's input batch."""

    req_id_to_index: dict[str, int]
    num_computed_tokens_cpu: Sequence[int]
    num_tokens_no_spec: Sequence[int]


def drop_partial(
    batch: Batch, prompts: Sequence[str], num_scheduled_tokens: Mapping[str, int], sampled: list[list[int]]
) -> None:
    """Empty the entries of ``sampled``, one per row, of prompts that this step leaves unfinished.

    A prompt is finished when every token that is known of the request has been computed.
    """
    for req_id in prompts:
        row = batch.req_id_to_index[req_id]
        if batch.num_computed_tokens_cpu[row] + num_scheduled_tokens[req_id] < batch.num_tokens_no_spec[row]:
            sampled[row] = []
