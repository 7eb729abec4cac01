"""An oracle of reads: vLLM's real scheduler, vllm-gaudi's real model runner, and a model that reports what it reads.

The engine is live (LLM on the CPU stand-ins: EngineCore, Scheduler or HPUAsyncScheduler, HPUWorker, HPUModelRunner,
InputBatch, Sampler, all upstream's code); only the network inside the runner's model adapter is replaced.  The
replacement keeps one KV slot per position, whose content is the id of the token that was written there (``NEVER`` where
nothing was), and reads through the attention metadata that the runner prepared: block lists, groups, usage, slots.

    engine = oracle.engine(async_scheduling=False)        # one per kind and process, made at first use
    with engine.session() as s:                           # idle engine, empty prefix cache, all slots never written
        s.add("A", prompt, temperature=0.7, max_tokens=4)  # a real Request; keywords are SamplingParams'
        step = s.step()                                   # schedule, execute, sample (one scheduler step)
        step.scheduled      {"A": 3}                      what the scheduler gave, in its order
        step.rows           ["A"]                         the batch rows when the step ran
        step.reads          {"A": [tokens...]}            what the request's forward saw, its own tokens included
        step.forwards       [["A"], ["B", "C"]]           the order of execution: prefill batches, then decodes
        step.samplings      [Sampling, ...]               one per call of the sampler, see below
        s.finish()                                        step until no request is left; returns all steps
        s.outputs["A"]      [tokens...]                   what the engine delivered to that request
        s.wrong_reads()     ["step 3: B read ..."]        every read that differs from the request's own tokens
        s.wrong_parameters() ["step 4: P was sampled with temperature 0.9 (Q's), not 0.7"]   the same for sampling
        s.wrong_outputs()   ["B got [...], not [...]"]    for greedy requests without processors
        oracle.right_tokens(prompt, n)                    what greedy decoding of one request must give

A ``Sampling`` holds ``owners`` (the request that each row of the logits belongs to, found in the logits themselves, so
it does not depend on what the runner believes; None for padding), ``logits`` (as the sampler got them), ``metadata``
(the SamplingMetadata that it was called with) and ``tokens`` (sampled, one per row).  ``sampling.of("A")`` gives the
row's parameters as plain values.

Other means: ``add(..., logits=function)`` lets a request have its own logits: called with the tokens read so far, it
returns a list or tensor of VOCAB numbers.  ``step(grammar={"A": [allowed ids]})`` plays a structured-output step: the
real mask code runs with that bitmask.  ``step(grammar={})`` is a structured step whose mask allows everything.
``held = preempt("A", "B")`` takes running requests off the queues as the scheduler does when memory is short, and
``resume(held)`` puts them back.  ``skip("A")`` leaves a running request out of the next step.
``drain()`` delivers what is in flight.  ``s.parts`` and ``s.scheduler`` are the live objects, ``s.runner.input_batch``
is the real InputBatch between steps.  With async scheduling a step's tokens arrive one step later, as in the engine
core: one batch is always in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import cpuhpu
from oracle_network import Network
from oracle_rows import Row, Sampling, given, row_of, wanted
from oracle_tokens import BLOCK, MARK, NEVER, VOCAB, next_token, peaked, right_tokens, short, told

__all__ = [
    "BLOCK",
    "NEVER",
    "VOCAB",
    "Engine",
    "Row",
    "Sampling",
    "Session",
    "Step",
    "engine",
    "next_token",
    "peaked",
    "prompt",
    "right_tokens",
    "short",
    "told",
]

POISON = 777.0  # what device rows of sampling parameters hold before anything was copied there


class Step(NamedTuple):
    """What one scheduler step did on the device."""

    number: int
    scheduled: dict[str, int]
    rows: list[str]
    forwards: list[list[str]]
    reads: dict[str, list[int]]
    samplings: list[Sampling]

    def sampled(self, request: str) -> Row:
        """The parameters with which the request was sampled in this step."""
        for sampling in self.samplings:
            if request in sampling.owners:
                return sampling.of(request)
        raise AssertionError(f"step {self.number}: {request} was not sampled; calls were {self.owners()}")

    def owners(self) -> list[list[str | None]]:
        return [sampling.owners for sampling in self.samplings]


class Session:
    """One test's use of the engine: see the module's docstring."""

    def __init__(self, engine: Engine) -> None:
        self.parts = engine.parts
        self.runner = engine.parts.runner
        self.scheduler = engine.parts.scheduler
        self.network = engine.network
        self.async_scheduling = engine.async_scheduling
        self.steps: list[Step] = []
        self.requests: dict[str, Any] = {}
        self.outputs: dict[str, list[int]] = {}
        self.samplings: list[Sampling] = []
        self._flight: deque[tuple[Any, Any]] = deque()

    def add(
        self, request: str, prompt: Sequence[int], logits: Callable[[list[int]], Any] | None = None, **params: Any
    ) -> Any:
        """Give the scheduler a request, as the engine core does; `params` are SamplingParams' (greedy by default)."""
        from vllm.v1.request import Request

        params.setdefault("max_tokens", 64)
        sampling = cpuhpu.sampling(**params)
        made = Request(
            request_id=request,
            prompt_token_ids=list(prompt),
            sampling_params=sampling,
            pooling_params=None,
            arrival_time=float(len(self.requests)),
            block_hasher=self.parts.core.request_block_hasher,
        )
        self.requests[request], self.outputs[request] = made, []
        if logits is not None:
            self.network.logits[request] = logits
        self.scheduler.add_request(made)
        return made

    def abort(self, *requests: str) -> None:
        """End requests from outside, as a client that goes away does."""
        self.parts.core.abort_requests(list(requests))

    def preempt(self, *requests: str, lost: Sequence[int] = ()) -> list[Any]:
        """Preempt running requests as the scheduler does under memory pressure, and take them off its queue.

        `lost` names the places of their blocks that others got meanwhile: their hashes leave the prefix cache.
        """
        scheduler = self.scheduler
        self.drain()
        blocks = [scheduler.kv_cache_manager.get_block_ids(name)[0] for name in requests]
        for name in reversed(requests):
            scheduler.running.remove(self.requests[name])
            scheduler._preempt_request(self.requests[name], 0.0)
        scheduler.kv_cache_manager.block_pool.evict_blocks({own[place] for own in blocks for place in lost})
        return [scheduler.waiting.pop_request() for _ in requests]

    def resume(self, held: Sequence[Any]) -> None:
        """Put preempted requests back in front of the queue; they are scheduled when there is room."""
        for request in reversed(held):
            self.scheduler.waiting.prepend_request(request)

    def skip(self, *requests: str) -> None:
        """Leave running requests out of the next step, as a limit of the scheduler's may."""
        for name in requests:
            self.requests[name].next_decode_eligible_step = self.scheduler.current_step + 2

    def step(self, grammar: Mapping[str, Sequence[int]] | None = None) -> Step:
        """One scheduler step; in sync mode its tokens are delivered at once, in async mode those of the step before."""
        scheduled = self.scheduler.schedule()
        return self.execute(scheduled, grammar)

    def execute(self, scheduled: Any, grammar: Mapping[str, Sequence[int]] | None = None) -> Step:
        """Run a SchedulerOutput: the scheduler's own, or one that a test edited."""
        network = self.network
        network.forwards, network.reads, self.samplings = [], {}, []
        network.expected.clear()
        before = dict(scheduled.num_scheduled_tokens)
        output = self.parts.worker.execute_model(scheduled)
        if output is None:
            output = self.parts.worker.sample_tokens(None if grammar is None else _grammar_output(grammar))
        rows = list(self.runner.input_batch.req_ids)
        step = Step(len(self.steps) + 1, before, rows, network.forwards, network.reads, self.samplings)
        self.steps.append(step)
        self._flight.append((scheduled, output))
        if not self.async_scheduling or len(self._flight) > 1:
            self._deliver()
        return step

    def _deliver(self) -> None:
        scheduled, output = self._flight.popleft()
        if hasattr(output, "get_output"):
            output = output.get_output()
        for outputs in self.scheduler.update_from_output(scheduled, output).values():
            for one in outputs.outputs:
                self.outputs[one.request_id] += one.new_token_ids

    def finish(self, limit: int = 100) -> list[Step]:
        """Step until every request is done and every token delivered."""
        last = len(self.steps) + limit
        while self.scheduler.has_requests():
            assert len(self.steps) < last, f"not finished after {limit} more steps: {list(self.scheduler.requests)}"
            self.step()
        self.drain()
        return self.steps

    def tokens(self, request: str) -> list[int]:
        """The request's prompt and what it was given so far."""
        return list(self.requests[request].prompt_token_ids) + self.outputs[request]

    def wrong_reads(self) -> list[str]:
        """Every forward that read anything but the request's own tokens, worded for a failure message."""
        found = []
        for step in self.steps:
            for request, read in step.reads.items():
                right = self.tokens(request)[: len(read)]
                if read[: len(right)] != right:  # the newest token may not be delivered yet
                    at = next(i for i, (a, b) in enumerate(zip(read, right, strict=False)) if a != b)
                    wrong = [a for a, b in zip(read, right, strict=False) if a != b]
                    found.append(
                        f"step {step.number}: {request} read {short(wrong)} from position {at} on, "
                        f"not its own tokens; rows {step.rows}, scheduler order {list(step.scheduled)}"
                    )
        return found

    def wrong_parameters(self) -> list[str]:
        """Every sampled row whose parameters are not those of the request that the row's logits belong to."""
        found = []
        for step in self.steps:
            for sampling in step.samplings:
                for owner, row in zip(sampling.owners, sampling.rows, strict=False):
                    if owner is not None:
                        where = f"step {step.number}: {owner} was sampled with"
                        found += [f"{where} {text}" for text in self._differs(owner, row)]
        return list(dict.fromkeys(found))  # padding rows repeat the first

    def _differs(self, owner: str, row: Row) -> Iterator[str]:
        got = given(row)
        for name, right in wanted(self.requests[owner]).items():
            if name in got and got[name] != right:
                others = [r for r in self.requests if r != owner and wanted(self.requests[r])[name] == got[name]]
                whose = f" ({others[0]}'s)" if others else ""
                shown = [short(v) if name == "prompt" else v for v in (got[name], right)]
                yield f"{name} {shown[0]}{whose}, not {shown[1]}"

    def wrong_outputs(self, *requests: str) -> list[str]:
        """Every request (all by default) that did not get the tokens that greedy decoding of its own tokens gives."""
        found = []
        for name in requests or self.requests:
            right = right_tokens(self.requests[name].prompt_token_ids, len(self.outputs[name]))
            if self.outputs[name] != right:
                found.append(f"{name} got {short(self.outputs[name])}, not {short(right)}")
        return found

    def drain(self) -> None:
        """Deliver the tokens of the step in flight, as the engine does before it pauses (async scheduling)."""
        while self._flight:
            self._deliver()

    def _close(self) -> None:
        self.network.logits.clear()
        self._flight.clear()
        live = [name for name in self.requests if name in self.scheduler.requests]
        self.parts.core.abort_requests(live)
        batch = self.runner.input_batch
        self.parts.worker.execute_model(self.scheduler.schedule())  # tells the worker which requests ended
        for name in list(batch.req_ids):  # a failed step may have left the worker behind the scheduler
            batch.condense([batch.remove_request(name)])
        self.runner.requests.clear()
        self.runner.scheduler_output = None
        batch.refresh_sampling_metadata()
        assert self.scheduler.reset_prefix_cache(), "blocks are still in use after the session"


class Engine:
    """A live engine of one kind whose network is the oracle's."""

    def __init__(self, async_scheduling: bool, **options: Any) -> None:
        defaults: dict[str, Any] = {
            "max_num_seqs": 8,
            "max_num_batched_tokens": 1024,
            "enable_prefix_caching": True,
            "async_scheduling": async_scheduling,
        }
        self.async_scheduling = async_scheduling
        self.llm = cpuhpu.make_llm(**{**defaults, **options})
        self.parts = cpuhpu.parts(self.llm)
        runner = self.parts.runner
        assert bool(runner.use_async_scheduling) == async_scheduling
        assert runner.block_size == BLOCK
        blocks = self.parts.scheduler.kv_cache_manager.block_pool.num_gpu_blocks
        self.network = Network((blocks + 2) * BLOCK)
        runner.model.model = self.network
        self._session: Session | None = None
        self._watch(runner)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """An idle engine with nothing cached; whatever is left running at the end is aborted."""
        batch = self.parts.runner.input_batch
        assert batch.num_reqs == 0
        self.network.slots.fill_(NEVER)
        self.network.contexts.clear()
        for name in ("temperature", "top_p", "frequency_penalties", "presence_penalties", "repetition_penalties"):
            getattr(batch, name).fill_(POISON)
        batch.top_k.fill_(int(POISON))
        batch.allowed_token_ids_mask = batch.allowed_token_ids_mask_cpu_tensor = None
        batch.prev_sampled_token_ids = batch.prev_req_id_to_index = None
        batch.prev_sampled_token_ids_invalid_indices = None
        self.parts.runner.use_structured_output = False
        self._session = Session(self)
        try:
            yield self._session
        finally:
            self._session._close()
            self._session = None

    def _watch(self, runner: Any) -> None:
        """Note who is in each forward and what each sampler call was given; changes nothing."""
        prepare = runner._prepare_inputs

        def prepare_inputs(scheduled: Any, prefills: int, decodes: int, *rest: Any) -> Any:
            result = prepare(scheduled, prefills, decodes, *rest)
            batches = [names for names in result[0][0].request_ids if names]
            self.network.expected.extend(batches)
            if decodes:
                self.network.expected.append(list(runner.input_batch.req_ids[:decodes]))
            return result

        runner._prepare_inputs = prepare_inputs

        def enter(_: Any, args: Any, kwargs: dict[str, Any]) -> None:
            if self._session is not None:
                logits, metadata = kwargs["logits"].cpu().clone(), kwargs["sampling_metadata"]
                owners = [self.network.owner(mark) for mark in logits[:, MARK].tolist()]
                rows = [row_of(metadata, index) for index in range(len(metadata.output_token_ids))]
                self._session.samplings.append(Sampling(owners, logits, metadata, [], rows))

        def leave(_: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
            if self._session is not None:
                self._session.samplings[-1].tokens.extend(output.sampled_token_ids.flatten().tolist())

        runner.sampler.register_forward_pre_hook(enter, with_kwargs=True)
        runner.sampler.register_forward_hook(leave, with_kwargs=True)


def _grammar_output(grammar: Mapping[str, Sequence[int]]) -> Any:
    """The scheduler's message for a structured step: one bitmask row per request of `grammar`."""
    import numpy as np
    from vllm.v1.core.sched.output import GrammarOutput

    mask = np.zeros((len(grammar), VOCAB // 32), dtype=np.uint32)
    for row, allowed in enumerate(grammar.values()):
        for token in [*(allowed or range(VOCAB)), MARK]:
            mask[row, token // 32] |= np.uint32(1 << (token % 32))
    return GrammarOutput(list(grammar), mask.view(np.int32))


_engines: dict[tuple[Any, ...], Engine] = {}


def engine(async_scheduling: bool, **options: Any) -> Engine:
    """The process's engine of that kind, made at first use; `options` are LLM's, each set makes its own engine."""
    key = (async_scheduling, *sorted(options.items()))
    if key not in _engines:
        _engines[key] = Engine(async_scheduling, **options)
    return _engines[key]


def prompt(length: int, seed: int = 0) -> list[int]:
    """Token ids below VOCAB - 9; other seeds differ in the first block already."""
    return cpuhpu.prompt(length, seed)
