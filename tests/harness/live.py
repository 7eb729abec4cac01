"""A live engine, stepped by hand: the real scheduler, worker and runner, with logits that a test chooses.

``clear()`` between tests: engines are module fixtures (the first one of a process takes seconds, the next a moment).
The model runs, but its logits are replaced by ``ladder``: token 0 first, then 1, 2, ... in every row, so that a test
knows what each sampling parameter must do.
With asynchronous scheduling the scheduler's update lags one step behind, as in the engine's own loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import cpuhpu
import numpy as np
import torch

BLOCK = 128  # vllm-gaudi's KV block


def ladder(rows: int, vocab: int, device: Any) -> torch.Tensor:
    """Logits 0.0, -0.1, -0.2, ... in every row."""
    return (torch.arange(vocab, dtype=torch.float32) * -0.1).expand(rows, vocab).clone().to(device)


class Live:
    """One engine.  ``make_logits(rows, vocab, device)`` may be replaced by a test, ``clear`` puts the ladder back."""

    def __init__(self, asynchronous: bool, **options: Any) -> None:
        self.llm = cpuhpu.make_llm(async_scheduling=asynchronous, **options)
        self.core, self.scheduler, self.worker, self.runner = cpuhpu.parts(self.llm)
        self.asynchronous = asynchronous
        assert self.runner.use_async_scheduling is asynchronous
        self.vocab: int = self.runner.input_batch.vocab_size
        self.make_logits: Callable[[int, int, Any], torch.Tensor] = ladder
        self.late: tuple[Any, Any] | None = None
        model = self.runner.model
        model.compute_logits = lambda hidden, *_args, **_named: self.make_logits(
            hidden.shape[0], self.vocab, hidden.device)

    @property
    def rows(self) -> list[str]:
        """The request ids in batch order."""
        return list(self.runner.input_batch.req_ids)

    def add(self, name: str, prompt: int | Sequence[int], params: Any) -> None:
        """A request of that name; ``prompt`` is the token ids, or a length (other names, other tokens)."""
        from vllm.v1.request import Request

        tokens = cpuhpu.prompt(prompt, sum(map(ord, name))) if isinstance(prompt, int) else list(prompt)
        self.scheduler.add_request(
            Request(request_id=name, prompt_token_ids=tokens, sampling_params=params, pooling_params=None,
                    arrival_time=0.0, block_hasher=self.core.request_block_hasher))

    def step(self, grammar: Sequence[str] = ()) -> dict[str, list[int]]:
        """One step; the tokens that each request got in it.  ``grammar`` names requests under an allow-all grammar."""
        return self.run(grammar)[0]

    def run(self, grammar: Sequence[str] = ()) -> tuple[dict[str, list[int]], Any]:
        """One step; the tokens per request, and the runner's output."""
        scheduled = self.scheduler.schedule()
        output = self.worker.execute_model(scheduled)
        if output is None:
            output = self._sample_structured(grammar) if grammar else self.worker.sample_tokens(None)
        if hasattr(output, "get_output"):
            output = output.get_output()
        if self.late:
            self.scheduler.update_from_output(*self.late)
        self.late = (scheduled, output)
        if not self.asynchronous:
            self.settle()
        tokens = {name: list(output.sampled_token_ids[row]) for name, row in output.req_id_to_index.items()
                  if name in scheduled.num_scheduled_tokens and row < len(output.sampled_token_ids)}
        return tokens, output

    def settle(self) -> None:
        """Let the scheduler see the last step's tokens."""
        if self.late:
            self.scheduler.update_from_output(*self.late)
        self.late = None

    def finish(self, *names: str) -> None:
        """End these requests; the runner drops their rows in the next step."""
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(list(names), RequestStatus.FINISHED_ABORTED)

    def clear(self) -> None:
        """End everything, also after a step that raised, and put the ladder back."""
        self.late = None
        self.make_logits = ladder
        self.finish(*self.scheduler.requests)
        self.worker.execute_model(self.scheduler.schedule())
        assert not self.rows
        assert self.scheduler.reset_prefix_cache()  # no test hits another one's blocks
        self.runner.use_structured_output = False

    def _sample_structured(self, names: Sequence[str]) -> Any:
        from vllm.v1.core.sched.output import GrammarOutput

        mask = np.full((len(names), (self.vocab + 31) // 32), -1, dtype=np.int32)
        make = torch.tensor

        def pageable(*args: Any, pin_memory: bool = False, **named: Any) -> torch.Tensor:
            return make(*args, **named)

        # Upstream pins a tensor here, and this torch has no accelerator to pin memory for.
        with mock.patch.object(torch, "tensor", pageable):
            return self.worker.sample_tokens(GrammarOutput(list(names), mask))
