"""Let a seeded request draw again for a token that was thrown away in flight, and get the same token.

A reset of the prefix cache preempts the running requests.  With asynchronous scheduling the token in flight is
dropped when it arrives, and sampled again later; its draw cannot be taken back, but the generator's state can.
"""

from __future__ import annotations

from typing import Any, NamedTuple

IN_FLIGHT = 4  # draws that are remembered; the scheduler has at most two steps in flight


class Draws(NamedTuple):
    """The generator of a request, and its states before the latest draws, by how many tokens the request had."""

    generator: Any
    states: dict[int, Any]


def rewind(runner: Any, scheduler_output: Any) -> None:
    """Set back the generators of requests that are to draw once more for a token; remember those of all others.

    :param runner: the model runner, its batch as it is about to be sampled.
    :param scheduler_output: of this step; it counts the tokens that each request has, those in flight included.
    """
    batch = runner.input_batch
    known: dict[str, Draws] = runner.__dict__.setdefault("_seeded_draws", {})
    if not runner.use_async_scheduling or not (batch.generators or known):
        return
    for req_id in known.keys() - runner.requests.keys():
        del known[req_id]
    cached = scheduler_output.scheduled_cached_reqs
    counts = dict(zip(cached.req_ids, cached.num_output_tokens, strict=True))
    for row, generator in batch.generators.items():
        req_id = batch.req_ids[row]
        if req_id not in scheduler_output.num_scheduled_tokens:
            continue
        draws = known.get(req_id)
        if draws is None or draws.generator is not generator:
            draws = known[req_id] = Draws(generator, {})
        count = counts.get(req_id, 0)
        if count in draws.states:
            generator.set_state(draws.states[count])
        else:
            draws.states[count] = generator.get_state()
            if len(draws.states) > IN_FLIGHT:
                del draws.states[min(draws.states)]
