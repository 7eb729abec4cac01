"""The whole system under random load: vLLM's schedulers and vllm-gaudi's runner, and the oracle in the network's place.

``python tests/harness/system.py SEEDS [FIRST]`` (in the environment of env.py) runs SEEDS workloads per mode, from
number FIRST on, in one process, and prints one JSON object:

    {"sync reads": {"0": {"wrong": ["..."], "steps": 61, "preempted": 2}, ...}, "async reads": {...}, ...,
     "cases": {NAME: the same for CASES}}

A workload is wrong if a request read anything but its own tokens, was sampled with other parameters than its own, or
got other tokens than its prompt and parameters give; or if the engine raised or never finished.
``replay(load, asynchronous)`` runs one workload, ``shrink(load, asynchronous)`` makes a wrong one small.

The engine's loop is that of EngineCore.step, or step_with_batch_queue with one batch in flight: with asynchronous
scheduling a step's tokens arrive during the next one, and a step whose grammar masks depend on tokens in flight is
sampled after these arrived.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any, NamedTuple, TextIO

import oracle
import torch
from oracle_tokens import MARK
from system_load import KINDS, STOPS, VOCAB, Ask, Load, allowed, foreseeable, load, right, scores

ROOM = 20  # the engine's KV blocks
LIMIT = 1500  # steps
__all__ = ["KINDS", "STOPS", "Ask", "Load", "Result", "load", "replay", "shrink"]


class Result(NamedTuple):
    wrong: list[str]
    steps: int
    preempted: int


class Backend:
    """What the structured output manager asks of a grammar backend here."""

    def allocate_token_bitmask(self, rows: int) -> torch.Tensor:
        return torch.zeros(rows, VOCAB // 32, dtype=torch.int32)


class Grammar:
    """A grammar that allows some tokens at each place; it advances as a real one does, when a token is delivered."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.place = 0

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        for token in tokens:
            if token not in allowed(self.number, self.place):
                return False
            self.place += 1
        return True

    def fill_bitmask(self, bitmask: torch.Tensor, row: int) -> None:
        bits = torch.zeros(VOCAB, dtype=torch.int64)
        bits[[*allowed(self.number, self.place), MARK]] = 1  # the mark is the oracle's
        words = (bits.view(-1, 32) << torch.arange(32)).sum(1)
        bitmask[row] = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)

    def is_terminated(self) -> bool:
        return False

    def rollback(self, count: int) -> None:
        self.place -= count

    def reset(self) -> None:
        self.place = 0


def _add(s: oracle.Session, ask: Ask) -> None:
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

    params = dict(ask.params)
    bad = params.pop("bad", None)
    if ask.grammar:
        params["structured_outputs"] = StructuredOutputsParams(regex=str(ask.grammar))
    request = s.add(ask.name, ask.prompt, scores, **params)
    if bad:
        request.sampling_params._bad_words_token_ids = bad
    if ask.grammar:
        real = type("RealGrammar", (Grammar, StructuredOutputGrammar), {"validate_tokens": lambda self, tokens: tokens})
        request.structured_output_request.grammar = real(ask.grammar)


def _step(s: oracle.Session, wrong: list[str]) -> int:
    """One step of the engine; returns how many requests the scheduler preempted in it."""
    network, worker = s.network, s.parts.worker
    scheduled = s.scheduler.schedule()
    network.forwards, network.reads, s.samplings = [], {}, []
    network.expected.clear()
    before = dict(scheduled.num_scheduled_tokens)
    cached = scheduled.scheduled_cached_reqs
    known = {new.req_id: new.num_computed_tokens for new in scheduled.scheduled_new_reqs}
    known.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    output = worker.execute_model(scheduled)
    if output is None:
        if getattr(scheduled, "pending_structured_output_tokens", False):
            s.drain()
        output = worker.sample_tokens(s.scheduler.get_grammar_bitmask(scheduled))
    number = len(s.steps) + 1
    s.steps.append(oracle.Step(
        number, before, list(s.runner.input_batch.req_ids), network.forwards, network.reads, s.samplings))
    for name, count in before.items():
        got = len(network.reads.get(name, ()))
        if got != known[name] + count:
            wrong.append(f"step {number}: {name} read {got} tokens, not {known[name]} + {count}")
    s._flight.append((scheduled, output))
    if not s.async_scheduling or len(s._flight) > 1:
        s._deliver()
    return len(scheduled.preempted_req_ids or ())


def _drive(s: oracle.Session, work: Load, held: list[Any], wrong: list[str]) -> int:
    """Run the workload to its end; returns the number of preemptions.  `held` are the blocks kept from it."""
    pool = s.scheduler.kv_cache_manager.block_pool
    held += pool.get_new_blocks(pool.get_num_free_blocks() - work.blocks)
    waiting = sorted(work.asks, key=lambda ask: ask.step)
    preempted = step = 0
    while waiting or s.scheduler.has_requests() or s._flight:
        if step > LIMIT:
            wrong.append(f"not finished after {LIMIT} steps")
            break
        while waiting and waiting[0].step <= step:
            _add(s, waiting.pop(0))
        gone = [ask.name for ask in work.asks if ask.abort == step and ask.name in s.scheduler.requests]
        if step and gone:
            s.abort(*gone)
        if step in work.resets:
            pool.free_blocks(held)
            held[:] = []
            s.scheduler.reset_prefix_cache(reset_running_requests=True)
            held += pool.get_new_blocks(pool.get_num_free_blocks() - work.blocks)
        if s.scheduler.has_requests():
            preempted += _step(s, wrong)
        else:
            s.drain()
        step += 1
    s.drain()
    return preempted


def _judge(s: oracle.Session, work: Load, wrong: list[str]) -> None:
    wrong += s.wrong_reads() + [text for text in s.wrong_parameters() if not re.search(r"sampled with prompt \[", text)]
    wrong += _wrong_prompts(s)
    for ask in work.asks:
        got, most = s.outputs.get(ask.name, []), ask.params["max_tokens"]
        whole = not ask.abort
        if foreseeable(ask, s.async_scheduling):
            expected = right(ask)
            if got != (expected if whole else expected[: len(got)]):
                at = next((i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b), len(expected))
                wrong.append(f"{ask.name}: {len(got)} tokens, {len(expected)} are right, the first {at} agree")
        elif whole and len(got) != most and not (got and got[-1] in ask.params.get("stop_token_ids", ())):
            wrong.append(f"{ask.name}: {len(got)} tokens, not {most}")


def _wrong_prompts(s: oracle.Session) -> list[str]:
    """Penalties that were computed with another prompt.

    The prompt of a resumed request may hold what it had generated: repetition counts either just once, and the other
    penalties look at the output only.
    """
    found = []
    for step in s.steps:
        for sampling in step.samplings:
            for owner, row in zip(sampling.owners, sampling.rows, strict=False):
                if owner is not None and row.prompt is not None:
                    length = len(s.requests[owner].prompt_token_ids)
                    if len(row.prompt) < length or row.prompt != s.tokens(owner)[: len(row.prompt)]:
                        shown = oracle.short(row.prompt)
                        found.append(f"step {step.number}: {owner} was sampled with the prompt {shown}")
    return found


def replay(work: Load, asynchronous: bool) -> Result:
    """Run a workload in the engine of its kind, which is idle and has nothing cached."""
    engine = oracle.engine(asynchronous, max_model_len=1024, num_gpu_blocks_override=ROOM, max_num_seqs=6)
    scheduler = engine.parts.scheduler
    scheduler.structured_output_manager.backend = Backend()
    scheduler.max_num_scheduled_tokens = work.budget
    scheduler.scheduler_config.long_prefill_token_threshold = work.threshold
    pool = scheduler.kv_cache_manager.block_pool
    held: list[Any] = []
    wrong: list[str] = []
    preempted = steps = 0
    try:
        with engine.session() as s:
            try:
                preempted = _drive(s, work, held, wrong)
                _judge(s, work, wrong)
            except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, ValueError) as error:
                wrong.insert(0, f"{type(error).__name__}: {error}")
            finally:
                pool.free_blocks(held)
                steps = len(s.steps)
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, ValueError) as error:
        wrong.insert(0, f"not stopped: {type(error).__name__}: {error}")
        oracle._engines.clear()  # it is broken: the next workload gets a new one
    return Result(wrong, steps, preempted)


def shrink(work: Load, asynchronous: bool) -> Load:
    """A smaller workload that is still wrong, or still raises the same: fewer requests, plainer ones."""
    error = _error(replay(work, asynchronous))
    again = True
    while again:
        again = False
        for smaller in _smaller(work):
            result = replay(smaller, asynchronous)
            if result.wrong and _error(result) == error:
                work, again = smaller, True
                break
    return work


def _error(result: Result) -> str:
    return result.wrong[0].split(":")[0] if result.wrong and "Error: " in result.wrong[0] else ""


def _smaller(work: Load) -> Any:
    for index in range(len(work.asks)):
        rest = work.asks[:index] + work.asks[index + 1 :]
        if rest:
            yield work._replace(asks=rest)
    if work.resets:
        yield work._replace(resets=())
    if work.threshold:
        yield work._replace(threshold=0)
    if work.budget < 1024:
        yield work._replace(budget=1024)
    if work.blocks < 16:
        yield work._replace(blocks=16)
    for index, ask in enumerate(work.asks):
        plainer = [ask._replace(abort=0)] if ask.abort else []
        plainer += [ask._replace(params={k: v for k, v in ask.params.items() if k != name})
                    for name in ask.params if name not in ("max_tokens", "min_tokens", "stop_token_ids")]
        if "stop_token_ids" in ask.params:
            plainer.append(ask._replace(params={
                k: v for k, v in ask.params.items() if k not in ("min_tokens", "stop_token_ids")}))
        if ask.grammar:
            plainer.append(ask._replace(grammar=0))
        if ask.step:
            plainer += [ask._replace(step=0), ask._replace(step=ask.step // 2)]
        most = ask.params["max_tokens"]
        plainer += [ask._replace(params={**ask.params, "max_tokens": less}) for less in (most // 2, most - 1) if less]
        size = len(ask.prompt)
        plainer += [ask._replace(prompt=ask.prompt[:less]) for less in (size // 2, size - 1) if less]
        for one in plainer:
            if one != ask:
                yield work._replace(asks=(*work.asks[:index], one, *work.asks[index + 1 :]))


_SEEDED = Ask("S", 0, oracle.prompt(100, 1), {"max_tokens": 4, "temperature": 0.8, "top_k": 50, "seed": 5})
_SHORT = Ask("G", 0, oracle.prompt(3, 2), {"max_tokens": 8}, grammar=7)
#: Small cases that the loads rarely draw: asynchronous, work.
CASES: dict[str, tuple[bool, Load]] = {
    "seed, prompt in chunks, async": (True, Load(64, 0, 16, (), (_SEEDED,))),
    "seed, prompt in chunks beside structured output, sync": (False, Load(64, 0, 16, (), (_SHORT, _SEEDED))),
    "seed, reset of the prefix cache, async": (True, Load(256, 0, 16, (3,), (_SEEDED,))),
    "seed, prompt in one piece, async": (True, Load(256, 0, 16, (), (_SEEDED,))),
    "seed, prompt in chunks, sync": (False, Load(64, 0, 16, (), (_SEEDED,))),
    "seed, prompt in one piece beside structured output, sync": (False, Load(256, 0, 16, (), (_SHORT, _SEEDED))),
}


def main(arguments: list[str], out: TextIO) -> int:
    seeds, first = int(arguments[0]), int(arguments[1]) if len(arguments) > 1 else 0
    kinds = arguments[2].split(",") if len(arguments) > 2 else KINDS
    found: dict[str, dict[str, Any]] = {}
    for asynchronous in (False, True):
        for kind in kinds:
            mode = found[f"{'async' if asynchronous else 'sync'} {kind}"] = {}
            for seed in range(first, first + seeds):
                mode[str(seed)] = replay(load(kind, seed, asynchronous), asynchronous)._asdict()
    found["cases"] = {
        name: replay(work, asynchronous)._asdict()
        for name, (asynchronous, work) in CASES.items()
    }
    json.dump(found, out)
    return 0


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w") as kept:
        os.dup2(2, 1)  # the engine logs to standard output, which is the result's
        raise SystemExit(main(sys.argv[1:], kept))
