"""The workloads of cost.py, run in one interpreter: vLLM's scheduler, vllm-gaudi's runner, a tiny model, a CPU.

    python benchmarks/cost_steps.py WORKLOAD... --steps N --repeats N

It runs in the environment that cost.py makes and prints one line: workload -> CPU and wall seconds per step of each
repeat.  Logits are the harness's ladder, so every tree samples from the same logits.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from cpuhpu import sampling
from live import Live

ROWS = 8
PROMPT = 24
MARK = "seconds per step: "  # upstream's own lines may come before and after

_engines: dict[tuple[bool, str], Live] = {}


def engine(asynchronous: bool, model: str = "llama") -> Live:
    """The engine of that kind; made at first use."""
    key = (asynchronous, model)
    if key not in _engines:
        _engines[key] = Live(
            asynchronous, model=model, max_num_seqs=ROWS, max_num_batched_tokens=1024, num_gpu_blocks_override=128
        )
    return _engines[key]


def decoding(
    live: Live,
    steps: int,
    repeats: int,
    params: Callable[[int], Any],
    *,
    prompt: int = PROMPT,
    grammar: Sequence[str] = (),
    before: Callable[[Live, int], None] = lambda live, number: None,
) -> list[tuple[float, float]]:
    """Seconds per step of ``ROWS`` running requests that only decode; each repeat starts them anew.

    :param params: the parameters of each request, by its number.
    :param grammar: requests that are under a grammar.
    :param before: called before each step, with its number.
    """

    def work(first: int, count: int) -> None:
        for number in range(first, first + count):
            before(live, number)
            live.step(grammar)

    times = []
    for _ in range(repeats + 1):
        for row in range(ROWS):
            live.add(f"R{row}", prompt, params(row))
            live.step(grammar)  # one by one: on stock, a prompt with bad words must not share its first step
        work(0, ROWS)
        times.append(timed(lambda: work(ROWS, steps), steps))
        live.clear()
    return times[1:]  # the first one compiles and caches


def timed(work: Callable[[], object], steps: int) -> tuple[float, float]:
    """CPU seconds and wall seconds per step."""
    wall, used = time.perf_counter(), time.process_time()
    work()
    return (time.process_time() - used) / steps, (time.perf_counter() - wall) / steps


def arriving(live: Live, steps: int, repeats: int) -> list[tuple[float, float]]:
    """In every step the oldest request ends and a new one arrives, so that rows move; all sample differently."""
    count = 0

    def step() -> None:
        nonlocal count
        if len(live.scheduler.requests) == ROWS:
            live.finish(next(iter(live.scheduler.requests)))
        live.add(f"R{count}", PROMPT, parameters(count % 5, temperature=0.5 + count % 5 / 10))
        count += 1
        live.step()

    for _ in range(3 * ROWS):
        step()
    times = [timed(lambda: [step() for _ in range(steps)], steps) for _ in range(repeats)]
    live.clear()
    return times


def leave_out(live: Live, number: int) -> None:
    """One running request after the other has no part in a step, as a limit of the scheduler's may demand."""
    request = live.scheduler.requests[f"R{number % ROWS}"]
    request.next_decode_eligible_step = live.scheduler.current_step + 2


def preempt(live: Live, number: int) -> None:
    """Before every fourth step, preempt a running request as for lack of memory; it resumes a step later."""
    if number % 4:
        return
    live.settle()
    request = live.scheduler.requests[f"R{number // 4 % ROWS}"]
    live.scheduler.running.remove(request)
    live.scheduler._preempt_request(request, 0.0)
    held = live.scheduler.waiting.pop_request()
    live.step()
    live.scheduler.waiting.prepend_request(held)


def parameters(_: int, **options: Any) -> Any:
    """Parameters of a request that outlives the workload."""
    return sampling(max_tokens=1900, **options)


def words(row: int) -> Any:
    """The first request, which starts alone, may not say tokens 0 and 1."""
    made = parameters(row)
    if row == 0:
        made._bad_words_token_ids = [[0], [1]]
    return made


def workloads(steps: int, repeats: int) -> dict[str, Callable[[], list[tuple[float, float]]]]:
    """Name -> run it."""

    def plain(asynchronous: bool, model: str = "llama", **options: Any) -> Any:
        return decoding(engine(asynchronous, model), steps, repeats, options.pop("params", parameters), **options)

    return {
        "decode": lambda: plain(True),
        "decode-sync": lambda: plain(False),
        "logit-bias": lambda: plain(True, params=lambda row: parameters(row, logit_bias={3: 5.0, 7: -5.0})),
        "bad-words": lambda: plain(True, params=words),
        "logprobs": lambda: plain(True, params=lambda row: parameters(row, logprobs=5)),
        "structured": lambda: plain(False, grammar=("R0",)),
        "skips": lambda: plain(True, before=leave_out),
        "preemptions": lambda: plain(True, before=preempt),
        "window": lambda: plain(True, "gpt_oss", prompt=300),
        "arrivals": lambda: arriving(engine(True), steps, repeats),
    }


def main(argv: Sequence[str]) -> int:
    """Run the named workloads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="+")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=8)
    args = parser.parse_args(argv)
    known = workloads(args.steps, args.repeats)
    print(MARK + json.dumps({name: known[name]() for name in args.workloads}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
