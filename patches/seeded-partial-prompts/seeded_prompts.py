"""Leave a seeded request's generator alone while its prompt is not finished.

Asynchronous scheduling, and a step with structured output, sample a row for each chunk of a prompt and throw the token
away.  The row is needed, but not that its request's generator draws for it: then the first token that is kept would
depend on the number of chunks, that is on whatever else the server was doing.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Protocol


class Batch(Protocol):
    """What is needed of the runner's input batch: by row, except the first."""

    req_id_to_index: Mapping[str, int]
    num_prompt_tokens: Sequence[int]
    num_tokens_no_spec: Sequence[int]
    num_computed_tokens_cpu: Sequence[int]
    generators: Mapping[int, Any]


class Runner(Protocol):
    """What is needed of the model runner."""

    input_batch: Batch


def note_unfinished(runner: Runner, prompts: Sequence[str], num_scheduled_tokens: Mapping[str, int]) -> None:
    """Keep on the runner the generators of those prompts that this step leaves unfinished.

    A prompt is finished when everything known of the request has been computed; a resumed request also has to compute
    again what it had generated.
    """
    batch = runner.input_batch
    left = []
    for req_id in prompts:
        row = batch.req_id_to_index[req_id]
        generator = batch.generators.get(row)
        if generator is not None:
            known = max(batch.num_prompt_tokens[row], batch.num_tokens_no_spec[row])
            if batch.num_computed_tokens_cpu[row] + num_scheduled_tokens[req_id] < known:
                left.append(generator)
    runner.__dict__["_unfinished_generators"] = left


def leave_out_unfinished(runner: Runner, generators: MutableMapping[int, Any]) -> None:
    """Take the noted generators out of ``generators``, what the sampler is to use: row of logits -> generator."""
    # Nothing is noted yet when the warm-up samples.
    left = runner.__dict__.get("_unfinished_generators", ())
    if left:
        for row in [row for row, generator in generators.items() if any(generator is one for one in left)]:
            del generators[row]
