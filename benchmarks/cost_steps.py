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
    live: Live, steps: int, repeats: int, params: Callable[[int], Any], prompt: int = PROMPT, **step: Any
) -> list[tuple[float, float]]:
    """Seconds per step of ``ROWS`` running requests that only decode; request n has ``params(n)``."""
    for row in range(ROWS):
        live.add(f"R{row}", prompt, params(row))
        live.step(**step)  # one by one: on stock, a prompt with bad words must not share its first step
    for _ in range(8):
        live.step(**step)
    times = []
    for _ in range(repeats):
        times.append(timed(lambda: [live.step(**step) for _ in range(steps)], steps))
    live.clear()
    return times


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


def leaving_out(live: Live, steps: int, repeats: int) -> list[tuple[float, float]]:
    """In every step one running request after the other is left out, as a limit of the scheduler's may."""
    count = 0

    def step() -> None:
        nonlocal count
        live.scheduler.requests[f"R{count % ROWS}"].next_decode_eligible_step = live.scheduler.current_step + 2
        count += 1
        live.step()

    return repeated(live, step, steps, repeats)


def preempting(live: Live, steps: int, repeats: int) -> list[tuple[float, float]]:
    """Every fourth time, a running request is preempted, as for lack of memory, and resumes a step later."""
    count = 0

    def step() -> None:
        nonlocal count
        if count % 4 == 0:
            live.settle()
            request = live.scheduler.requests[f"R{count // 4 % ROWS}"]
            if request in live.scheduler.running:
                live.scheduler.running.remove(request)
                live.scheduler._preempt_request(request, 0.0)
                held = live.scheduler.waiting.pop_request()
                live.step()
                live.scheduler.waiting.prepend_request(held)
        count += 1
        live.step()

    return repeated(live, step, steps, repeats)


def repeated(live: Live, step: Callable[[], None], steps: int, repeats: int) -> list[tuple[float, float]]:
    """Seconds per call of ``step``, with ``ROWS`` requests that decode."""
    for row in range(ROWS):
        live.add(f"R{row}", PROMPT, parameters(row))
        live.step()
    for _ in range(2 * ROWS):
        step()
    times = [timed(lambda: [step() for _ in range(steps)], steps) for _ in range(repeats)]
    live.clear()
    return times


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

    def plain(asynchronous: bool, model: str = "llama", prompt: int = PROMPT, **options: Any) -> Any:
        return decoding(
            engine(asynchronous, model), steps, repeats, lambda row: parameters(row, **options), prompt=prompt
        )

    return {
        "decode": lambda: plain(True),
        "decode-sync": lambda: plain(False),
        "logit-bias": lambda: plain(True, logit_bias={3: 5.0, 7: -5.0}),
        "bad-words": lambda: decoding(engine(True), steps, repeats, words),
        "logprobs": lambda: plain(True, logprobs=5),
        "structured": lambda: decoding(engine(False), steps, repeats, parameters, grammar=("R0",)),
        "arrivals": lambda: arriving(engine(True), steps, repeats),
        "skips": lambda: leaving_out(engine(True), steps, repeats),
        "preemptions": lambda: preempting(engine(True), steps, repeats),
        "window": lambda: plain(True, "gpt_oss", 300),
    }


def main(argv: Sequence[str]) -> int:
    """Run the named workloads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="+")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args(argv)
    known = workloads(args.steps, args.repeats)
    print(MARK + json.dumps({name: known[name]() for name in args.workloads}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
