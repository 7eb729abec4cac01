"""Feed the logits processors for the rows of one sampling call.

vLLM keeps ``logit_bias``, ``min_p``, ``min_tokens`` and custom processors in objects that learn of
requests only through ``update_state``.  On the GPU their rows are the rows of the persistent batch.
The HPU runner samples several times per step (once per prefill sub-batch, once for the decodes), so
here their rows are the rows of the call, and their state is rebuilt before each call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from vllm.v1.sample.logits_processor import (
    BatchUpdate,
    LogitBiasLogitsProcessor,
    LogitsProcessors,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)

BUILTIN = (LogitBiasLogitsProcessor, MinPLogitsProcessor, MinTokensLogitsProcessor)


class Request(Protocol):
    """What is needed of the runner's state of a request.

    The runner also keeps ``num_sampled_tokens`` on it: how many tokens the scheduler counted before
    this step.  It is missing until the request's second step.
    """

    prompt_token_ids: list[int]
    output_token_ids: list[int]
    sampling_params: Any


def feed(processors: LogitsProcessors, rows: Sequence[tuple[str, list[int]]], requests: Mapping[str, Any]) -> bool:
    """Make the processors' state describe exactly the rows of the coming sampling call.

    ``rows`` is the call's list of (request id, output tokens), one entry per row of logits; padding
    rows repeat a request and get no entry in any processor.  Without a request that uses one of the
    parameters, and without custom processors, nothing is touched: the processors stay empty.

    Returns whether the processors were updated.
    """
    # What was fed last is remembered on the object itself: the batch around it may be replaced.
    fed: int = getattr(processors, "_fixpack_fed_rows", 0)
    custom = _has_custom(processors)
    need = custom or any(_uses_processor(requests[req_id].sampling_params) for req_id, _ in rows)
    if not need and not fed:
        return False

    states = [requests[req_id] for req_id in dict.fromkeys(req_id for req_id, _ in rows)] if need else []
    added = [(row, state.sampling_params, state.prompt_token_ids, output_tokens(state, exact=custom))
             for row, state in enumerate(states)]
    update = BatchUpdate(batch_size=len(rows), removed=range(len(states), fed), added=added, moved=[])
    for processor in processors.all:
        if isinstance(processor, MinPLogitsProcessor):
            _update_min_p(processor, update)
        else:
            processor.update_state(update)
    processors._fixpack_fed_rows = len(states)  # type: ignore[attr-defined]
    return True


def output_tokens(state: Request, exact: bool) -> list[int]:
    """The request's output tokens, as long as the scheduler counts them.

    With async scheduling the worker does not know its sampled tokens on the host, and its list stays
    short.  What is missing is filled with -1, in a copy: the request's own list says what is known.
    Built-in processors only ask whether ``min_tokens`` is reached, so that many are enough for them;
    ``exact`` gives the full count.
    """
    tokens = state.output_token_ids
    count: int = getattr(state, "num_sampled_tokens", 0)
    if not exact:
        count = min(count, state.sampling_params.min_tokens)
    missing = count - len(tokens)
    return [*tokens, *[-1] * missing] if missing > 0 else tokens


def _uses_processor(params: Any) -> bool:
    return bool(params.min_tokens or params.min_p or params.logit_bias)


def _has_custom(processors: LogitsProcessors) -> bool:
    custom: bool | None = getattr(processors, "_fixpack_custom", None)
    if custom is None:
        custom = any(type(processor) not in BUILTIN for processor in processors.all)
        processors._fixpack_custom = custom  # type: ignore[attr-defined]
    return custom


def _update_min_p(processor: MinPLogitsProcessor, update: BatchUpdate) -> None:
    """``update_state``, then a column of our own that covers every row of the call.

    The processor's buffers hold ``max_num_seqs`` rows, and a padded decode bucket may be larger.
    They are also rewritten for the next call of the same step while a non-blocking copy of them may
    still be pending; a fresh host tensor per call cannot be.
    """
    room = processor.min_p_cpu_tensor.shape[0]
    if len(update.added) > room:  # only in warm-up, whose batch may exceed max_num_seqs
        update = BatchUpdate(batch_size=update.batch_size, removed=update.removed, added=update.added[:room],
                             moved=update.moved)
    processor.update_state(update)
    if processor.min_p_count:
        column = torch.zeros((update.batch_size, 1), dtype=torch.float32)
        requests = len(update.added)
        column[:requests, 0] = processor.min_p_cpu_tensor[:requests]
        processor.min_p = column.to(processor.min_p_device.device, non_blocking=True)
