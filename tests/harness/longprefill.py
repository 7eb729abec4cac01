"""vLLM's real schedulers and engine loops on a device that takes virtual time: what a long prompt does to the others.

``Engine`` is an EngineCore without workers: its own ``step`` (synchronous scheduling) or ``step_with_batch_queue``
(asynchronous, two steps in flight), a real Scheduler or AsyncScheduler with real KV cache management, real requests.
The executor is a first-in-first-out device that gives tokens and takes as long as ``Costs`` says; its clock is the only
one.  Nothing sleeps, and a run is the same every time.

    engine = Engine(share=0.5, exact=True, asynchronous=True)
    engine.add("D", 1000, 4000)                  # a prompt of 1,000 tokens, 4,000 to generate
    engine.add("L", 200_000, 4, at=3.0)          # arrives at second 3
    engine.run()
    engine.kept("L")                             # the part of their speed that the others kept while L was prefilled
    engine.ttft("L"), engine.steps, engine.tokens
"""

from __future__ import annotations

import functools
import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from queue import Queue
from typing import Any, NamedTuple

import models
import pytest

BLOCK = 128
LONG = 65536  # the default of VLLM_LONG_PREFILL_MIN_TOKENS
AS_IT_IS = "as it is"  # a share that leaves the environment alone


class Costs(NamedTuple):
    """Seconds of a step: as reported of a large model on eight Gaudi 2 cards."""

    chunk: float = 0.07  # for 2,048 tokens of a prompt
    context: float = 1e-5  # for the same, per token before it
    decode: float = 0.028  # if anything decodes
    stream: float = 0.002  # for each that decodes
    jitter: float = 0.0  # a part of the step, up or down

    def prefill(self, tokens: int, context: int) -> float:
        return (self.chunk + self.context * context) * tokens / 2048

    def decodes(self, streams: int) -> float:
        return self.decode + self.stream * streams if streams else 0.0


class Step(NamedTuple):
    """A step that the device did."""

    begin: float
    end: float
    tokens: dict[str, int]  # by request, in the scheduler's order
    prefills: tuple[str, ...]  # those whose tokens were a part of a prompt
    undisturbed: float  # what the decodes among them would have taken alone


class Clock:
    """Virtual seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Job(Future):  # type: ignore[type-arg]
    """A step on its way: whoever asks for the result waits, which moves the clock."""

    def __init__(self, clock: Clock, end: float, output: Any) -> None:
        super().__init__()
        self.clock, self.end, self.output = clock, end, output

    def result(self, timeout: float | None = None) -> Any:
        self.clock.now = max(self.clock.now, self.end)
        return self.output


class Device:
    """The executor: one step after the other, however many are waiting."""

    def __init__(self, clock: Clock, costs: Costs, seed: int, drafts: int) -> None:
        self.clock, self.costs, self.drafts = clock, costs, drafts
        self.draw = random.Random(seed)
        self.scheduler: Any = None
        self.steps: list[Step] = []
        self.free = 0.0
        self.job: Job | None = None
        self.drafted: dict[str, list[int]] = {}

    def execute_model(self, scheduled: Any, non_block: bool = False) -> Job:
        from vllm.v1.outputs import ModelRunnerOutput

        counts, drafts = dict(scheduled.num_scheduled_tokens), scheduled.scheduled_spec_decode_tokens
        seconds, prefills, decodes, sampled = 0.0, [], 0, []
        self.drafted = {}
        for name, count in counts.items():
            request = self.scheduler.requests[name]
            before = request.num_computed_tokens - count  # the scheduler has counted this step already
            if before < request.num_tokens - 1:
                prefills.append(name)
                seconds += self.costs.prefill(count, before)
            else:
                decodes += 1
            tokens = [] if request.is_prefill_chunk else [7 + self.draw.randrange(400)]
            if tokens and name in drafts:
                tokens += [9] * self.draw.randint(0, len(drafts[name]))
            if tokens:
                self.drafted[name] = [11] * self.drafts
            sampled.append(tokens)
        undisturbed = self.costs.decodes(decodes)
        seconds = (seconds + undisturbed) * (1 + self.draw.uniform(-self.costs.jitter, self.costs.jitter))
        begin = max(self.free, self.clock.now)
        self.free = begin + seconds
        self.steps.append(Step(begin, self.free, counts, tuple(prefills), undisturbed))
        places = {name: place for place, name in enumerate(counts)}
        self.job = Job(self.clock, self.free, ModelRunnerOutput(list(counts), places, sampled))
        return self.job

    def sample_tokens(self, grammar: Any, non_block: bool = False) -> Any:
        return self.job

    def take_draft_token_ids(self) -> Any:
        from vllm.v1.outputs import DraftTokenIds

        return DraftTokenIds(list(self.drafted), list(self.drafted.values()))


def config(asynchronous: bool, **options: Any) -> Any:
    """A VllmConfig of a tiny model with a context of a million tokens; most `options` are for SchedulerConfig."""
    import torch
    from vllm.config import (
        CacheConfig,
        DeviceConfig,
        ModelConfig,
        ParallelConfig,
        SchedulerConfig,
        SpeculativeConfig,
        VllmConfig,
    )

    length = options.pop("max_model_len", 1 << 20)
    drafts = options.pop("drafts", 0)
    caching = options.pop("caching", False)
    ranks = options.pop("data_parallel_size", 1)
    parallel = ParallelConfig()
    parallel.data_parallel_size = ranks  # what it would check first needs the ranks
    wanted = {
        "max_num_seqs": 64,
        "max_num_batched_tokens": 8192,
        "long_prefill_token_threshold": 2048,
        "enable_chunked_prefill": True,
        **options,
    }
    return VllmConfig(
        model_config=ModelConfig(
            model=models.path("llama"),
            skip_tokenizer_init=True,
            dtype=torch.float32,
            max_model_len=length,
            hf_overrides={"max_position_embeddings": 1 << 20},
        ),
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=caching),
        parallel_config=parallel,
        scheduler_config=SchedulerConfig(
            async_scheduling=asynchronous, max_model_len=length, is_encoder_decoder=False, **wanted
        ),
        device_config=DeviceConfig("cpu"),
        speculative_config=SpeculativeConfig(method="ngram", num_speculative_tokens=drafts) if drafts else None,
    )


def kv_cache(blocks: int) -> Any:
    """One group of full attention with so many blocks."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])


@functools.cache  # the hash of no block is drawn at random
def block_hasher() -> Any:
    """What makes the hashes of the prefix cache."""
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    init_none_hash(sha256)
    return get_request_block_hasher(BLOCK, sha256)


@contextmanager
def environment(**values: object) -> Iterator[None]:
    """The share's variables as given, by what follows ``VLLM_LONG_PREFILL_``; all others of them unset."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SHARE", "SHARE_ASYNC", "MIN_TOKENS"):
            patch.delenv(f"VLLM_LONG_PREFILL_{name}", raising=False)
            if name in values:
                patch.setenv(f"VLLM_LONG_PREFILL_{name}", str(values[name]))
        yield


class Engine:
    """An engine core without workers; see the module's docstring."""

    def __init__(
        self,
        share: float | str | None = None,
        exact: bool = False,
        asynchronous: bool = True,
        costs: Costs | None = None,
        blocks: int = 16384,
        seed: int = 0,
        min_tokens: int = LONG,
        log_stats: bool = False,
        **options: Any,
    ) -> None:
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.engine.core import EngineCore
        from vllm.v1.structured_output import StructuredOutputManager

        values = {"SHARE": share, "SHARE_ASYNC": int(exact), "MIN_TOKENS": min_tokens} if share is not None else {}
        self.costs = costs or Costs()
        self.clock = Clock()
        self.device = Device(self.clock, self.costs, seed, options.get("drafts", 0))
        vllm = config(asynchronous, **options)
        vllm.cache_config.num_gpu_blocks = blocks
        with nullcontext() if share == AS_IT_IS else environment(**values):
            self.scheduler: Any = (AsyncScheduler if asynchronous else Scheduler)(
                vllm_config=vllm,
                kv_cache_config=kv_cache(blocks),
                structured_output_manager=StructuredOutputManager(vllm),
                block_size=BLOCK,
                log_stats=log_stats,
            )
        self.device.scheduler = self.scheduler
        #: the fix's own object; None on stock, and where the share is off
        self.share: Any = getattr(self.scheduler, "_long_prefill_share", None)
        if self.share is not None:
            self.share.clock = self.clock
        self.core: Any = object.__new__(EngineCore)
        self.core.vllm_config, self.core.scheduler, self.core.model_executor = vllm, self.scheduler, self.device
        self.core.log_stats = log_stats
        self.core.async_scheduling = asynchronous
        self.core.aborts_queue = Queue()
        self.core.batch_queue_size = 2 if asynchronous else 1
        self.core.batch_queue = deque(maxlen=2) if asynchronous else None
        self.core.is_ec_consumer = True  # a name that newer releases do not have
        self.core.is_mm_encoder_only = self.core.is_pooling_model = False
        self.core.check_for_draft_tokens = bool(options.get("drafts"))
        self.core._weight_version = None
        self.step_fn = self.core.step_with_batch_queue if asynchronous else self.core.step
        self.caching = bool(options.get("caching"))
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.arrivals: dict[str, float] = {}
        self.prompts: dict[str, int] = {}
        self.tokens: dict[str, list[float]] = {}  # when each token of a request was delivered
        self.ended: dict[str, float] = {}

    @property
    def steps(self) -> list[Step]:
        """What the device did, empty steps included."""
        return self.device.steps

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Do something when the clock has come so far."""
        heapq.heappush(self.events, (when, len(self.events) + len(self.arrivals), what))

    def add(
        self, name: str, prompt: int | list[int], most: int, at: float = 0.0, priority: int = 0, exactly: bool = True
    ) -> None:
        """A request arrives: a prompt of so many tokens (or these), and at most so many to generate."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        ids = prompt if isinstance(prompt, list) else [(len(self.arrivals) * 37 + i) % 499 for i in range(prompt)]
        hasher = block_hasher() if self.caching else None
        made = Request(
            request_id=name,
            prompt_token_ids=ids,
            sampling_params=SamplingParams(max_tokens=most, ignore_eos=exactly, detokenize=False),
            pooling_params=None,
            arrival_time=at,
            priority=priority,
            block_hasher=hasher,
        )
        self.arrivals[name], self.prompts[name], self.tokens[name] = at, len(ids), []
        self.at(at, lambda: self.scheduler.add_request(made))

    def abort(self, name: str, at: float) -> None:
        """The client of a request goes away."""
        self.at(at, lambda: self.core.abort_requests([name]))

    def run(self, until: Callable[[], bool] = lambda: False, limit: int = 200_000) -> Engine:
        """Run until everything is done, or ``until`` says so."""
        for _ in range(limit):
            busy = self.scheduler.has_requests() or bool(self.core.batch_queue)
            if self.events and not busy:
                self.clock.now = max(self.clock.now, self.events[0][0])
            while self.events and self.events[0][0] <= self.clock.now:
                heapq.heappop(self.events)[2]()
            if until():
                return self
            if not (self.scheduler.has_requests() or self.core.batch_queue or self.events):
                return self
            outputs, executed = self.step_fn()
            self.core.post_step(executed)
            for delivered in (outputs or {}).values():
                for one in delivered.outputs:
                    self.tokens[one.request_id] += [self.clock.now] * len(one.new_token_ids)
                    if one.finish_reason is not None:
                        self.ended[one.request_id] = self.clock.now
        left = list(self.scheduler.requests)
        raise AssertionError(f"not done after {limit} steps, at {self.clock.now:.1f} s: {left}")

    # -- what happened ------------------------------------------------------------------------------------------------

    def window(self, *names: str) -> list[Step]:
        """The steps from the first to the last one with a chunk of these prompts."""
        places = [place for place, step in enumerate(self.steps) if any(name in step.prefills for name in names)]
        return self.steps[places[0] : places[-1] + 1]

    def kept(self, *names: str) -> float:
        """The part of their undisturbed speed that the others kept while these prompts were prefilled.

        Each token that a step gave them would have taken, alone, a step of the decodes in it.
        """
        steps = self.window(*names)
        return sum(step.undisturbed for step in steps) / (steps[-1].end - steps[0].begin)

    def ttft(self, name: str) -> float:
        """Seconds from a request's arrival to its first token."""
        return self.tokens[name][0] - self.arrivals[name]

    def trace(self) -> list[tuple[float, dict[str, int]]]:
        """Every step: when it began, and what the scheduler gave to whom."""
        return [(step.begin, step.tokens) for step in self.steps]
