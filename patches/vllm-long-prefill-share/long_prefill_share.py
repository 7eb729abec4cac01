"""The scheduler's side of the long-prefill share: which requests are long, what a step holds, what to tell.

Long is a prompt of at least ``min_tokens`` tokens that is still being prefilled, or computed again after a preemption.
The decision is long_prefill_ledger's, the configuration long_prefill_settings'.
"""

from __future__ import annotations

import os
import time
from typing import Any

from vllm import envs
from vllm._fixpack import long_prefill_settings
from vllm._fixpack.long_prefill_ledger import Counters, Kind, Ledger
from vllm._fixpack.long_prefill_settings import Settings
from vllm.logger import init_logger

logger = init_logger(__name__)


def for_scheduler(scheduler: Any) -> LongPrefillShare | None:
    """The share of a scheduler that is being made, by the environment; None if it is off.

    Raises ValueError if a variable has a value that is not allowed.
    """
    settings = long_prefill_settings.read(os.environ)
    if settings.share <= 0.0:
        return None
    config = scheduler.vllm_config
    if config.parallel_config.data_parallel_size > 1:
        logger.warning("%s is ignored: with data parallelism, ranks wait for each other, and a step of decodes lasts "
                       "as long as another rank's chunk.", long_prefill_settings.SHARE)
        return None
    if not config.scheduler_config.enable_chunked_prefill:
        logger.warning("%s: chunked prefill is off, so that a long prompt is one step, and nothing of it is left to "
                       "defer: the others wait for all of it. Use chunked prefill and "
                       "--long-prefill-token-threshold.", long_prefill_settings.SHARE)
    elif config.scheduler_config.long_prefill_token_threshold <= 0:
        logger.warning("%s: no limit of tokens per chunk, so that one chunk of a long prompt may take a step's whole "
                       "budget of %d tokens. The share holds, but the others wait for so long at a time; use "
                       "--long-prefill-token-threshold.", long_prefill_settings.SHARE,
                       scheduler.max_num_scheduled_tokens)
    if scheduler.scheduler_config.async_scheduling and not settings.exact:
        logger.info("%s=1 is not set: with asynchronous scheduling less than the share is kept (a third instead of a "
                    "half).", long_prefill_settings.EXACT)
    logger.info("Requests keep %.2f of their speed while a prompt of at least %d tokens is prefilled (%s).",
                settings.share, settings.min_tokens, "exact" if settings.exact else "plain")
    return LongPrefillShare(settings)


class Prompt:
    """A long prompt that has been given a chunk."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.chunks = 0
        self.deferred = 0
        self.start: Counters | None = None  # before its first chunk was charged


class LongPrefillShare:
    """The ledger of one scheduler, and its long prompts.  The scheduler calls the methods in the order given here."""

    def __init__(self, settings: Settings) -> None:
        self.ledger = Ledger(settings.share, settings.exact)
        self.min_tokens = settings.min_tokens
        self.clock = time.monotonic
        self.prompts: dict[str, Prompt] = {}
        self._skipped: list[str] = []
        self._interval = float(envs.VLLM_LOG_STATS_INTERVAL)
        self._told = 0.0  # when the counters were told last, or the first of several long prompts began

    def defers(self, scheduler: Any) -> bool:
        """Whether this step must leave long prompts out; asked once, before any request is scheduled."""
        return self.ledger.due and self.ledger.defers(lambda: self._others(scheduler))

    def skips(self, request: Any) -> bool:
        """Whether a request is to be left out; asked only if the step leaves long prompts out."""
        if request.num_prompt_tokens < self.min_tokens or request.num_computed_tokens >= request.num_tokens - 1:
            return False
        self._skipped.append(request.request_id)
        return True

    def scheduled(self, scheduler: Any, output: Any) -> None:
        """A step was put together; the computed tokens of its requests are still those before it."""
        chunks: list[tuple[str, bool]] = []
        counts = output.num_scheduled_tokens
        kind = Kind.DECODE if counts else Kind.EMPTY
        if output.total_num_scheduled_tokens > len(counts):  # else there is one token for each
            requests = scheduler.requests
            for name, count in counts.items():
                if count > 1:
                    request = requests[name]
                    last = request.num_tokens - 1
                    if request.num_computed_tokens < last:  # never true of a decode, drafts and placeholders included
                        kind = Kind.MIXED
                        if request.num_prompt_tokens >= self.min_tokens:
                            chunks.append((name, request.num_computed_tokens + count >= last))
        now = self.clock()
        if chunks:
            kind = Kind.CHUNK
            self._told = self._told if self.prompts else now
            for name, _ in chunks:
                if name not in self.prompts:
                    self.prompts[name] = Prompt(scheduler.requests[name].num_prompt_tokens)
        deferred = bool(self._skipped)
        if deferred:
            for name in self._skipped:
                if name in self.prompts:
                    self.prompts[name].deferred += 1
            self._skipped.clear()
        self.ledger.begin(output, kind, len(counts) > len(chunks), deferred, now, chunks)

    def completed(self, scheduler: Any, output: Any) -> None:
        """A step is done, in the order of scheduling; its tokens are not yet processed."""
        before = self.ledger.counters() if self.prompts else None
        now = self.clock()
        charge = self.ledger.end(output, now)
        if before is None or charge is None:
            return
        chunks: list[tuple[str, bool]] = charge.note
        for name, ends in chunks:
            if prompt := self.prompts.get(name):
                prompt.chunks += 1
                prompt.start = prompt.start or before
                if ends:
                    self._tell(name, "prefilled")
        for name in [name for name in self.prompts if name not in scheduler.requests]:
            self._tell(name, "aborted")
        if scheduler.log_stats and now - self._told >= self._interval:
            self._told = now
            self._tell_counters()

    def _others(self, scheduler: Any) -> bool:
        """Whether anything but long prompts can run now, by the conditions of the scheduler's own loop."""
        most = scheduler.max_model_len - scheduler.num_sampled_tokens_per_step
        for request in scheduler.running:
            computed, placeholders = request.num_computed_tokens, request.num_output_placeholders
            if request.num_prompt_tokens >= self.min_tokens and computed < request.num_tokens - 1:
                continue
            if placeholders and computed + 2 - placeholders >= request.num_prompt_tokens + request.max_tokens:
                continue  # its last token is in flight
            if scheduler.current_step < request.next_decode_eligible_step:
                continue
            if computed < min(request.num_tokens_with_spec + placeholders, most):
                return True
        return False

    def _tell(self, name: str, how: str) -> None:
        prompt = self.prompts.pop(name)
        if prompt.start is None:
            return  # none of its chunks was done
        spent = self.ledger.counters().since(prompt.start)
        kept = spent.shared_steps * self.ledger.decode_seconds / spent.seconds if spent.seconds > 0 else 0.0
        others = f"others kept {kept:.2f} of their speed ({self.ledger.share:.2f} asked)"
        logger.info("Long prompt %s of %d tokens %s in %.1f s: %d chunks, deferred in %d steps; %.1f s of steps with a "
                    "chunk, %.1f s of others; %s.", name, prompt.tokens, how, spent.seconds, prompt.chunks,
                    prompt.deferred, spent.chunk_seconds, spent.other_seconds,
                    others if spent.shared_steps else "nothing else ran")

    def _tell_counters(self) -> None:
        count, ledger = self.ledger.counters(), self.ledger
        logger.info("Long prefill share: steps with a chunk %d (%.1f s), others %d (%.1f s), empty %d; deferred %d, "
                    "forced %d, resets without others %d; debt %.3f s, last chunk step %.3f s, step of decodes %.3f s",
                    count.chunk_steps, count.chunk_seconds, count.other_steps, count.other_seconds, count.empty_steps,
                    count.deferred_steps, count.forced_steps, count.resets, ledger.debt, ledger.chunk_seconds or 0.0,
                    ledger.decode_seconds)
