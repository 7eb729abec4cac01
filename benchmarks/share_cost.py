#!/usr/bin/env python3
"""What vllm-long-prefill-share costs the scheduler: CPU time per step with 256 running requests, on against off.

    python benchmarks/share_cost.py [--release vllm@v0.26.0] [--steps 300] [--rounds 5]

vLLM's real scheduler, schedule() and update_from_output() alone; two engines without the share and two with it take
steps in an order that changes, so that what else the machine does hits all of them.  A ratio is that of the medians of
a round; shown are the median of the rounds, the lowest and the highest.  The bound is 1.03.

    no long prompt           256 requests decode
    a chunk in the step      255 requests decode, and a long prompt has a chunk in each step
    a long prompt left out   255 requests decode; with the share, beside a long prompt that is left out of the step
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import time
from typing import Any

CASES = ("no long prompt", "a chunk in the step", "a long prompt left out")
BOUND = 1.03


class Timed:
    """An engine whose scheduler's CPU time is taken step by step."""

    def __init__(self, case: str, on: bool) -> None:
        import longprefill

        self.engine = longprefill.Engine(
            0.5 if on else None, True, asynchronous=False, max_num_seqs=300, blocks=60_000, max_num_batched_tokens=8192
        )
        for index in range(256 if case == CASES[0] else 255):
            self.engine.add(f"D{index}", 100, 500_000)
        if case == CASES[1] or (case == CASES[2] and on):
            self.engine.add("L", 1_000_000, 4, at=2.0)
        self.engine.run(until=lambda: self.engine.clock.now > 4.0)
        if self.engine.share:
            ledger = self.engine.share.ledger
            ledger.defers = lambda others: case == CASES[2] and others()  # the same in every step
            ledger.debt = 1e9
            type(ledger).due = property(lambda self: True)  # so that it is asked in every step: the dearest case
        self.spent = 0
        scheduler = self.engine.scheduler
        for name in ("schedule", "update_from_output"):
            setattr(scheduler, name, self._timed(getattr(scheduler, name)))

    def _timed(self, function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            start = time.thread_time_ns()
            result = function(*arguments)
            self.spent += time.thread_time_ns() - start
            return result

        return call

    def step(self) -> int:
        """Nanoseconds that the scheduler took for one step."""
        self.spent = 0
        self.engine.step_fn()
        return self.spent


def measure(steps: int, rounds: int) -> dict[str, list[list[float]]]:
    """By case, for each round: microseconds per step without the share, and with it."""
    found: dict[str, list[list[float]]] = {}
    gc.disable()
    order = random.Random(1)
    for case in CASES:
        engines = [(on, Timed(case, bool(on))) for on in (0, 1, 1, 0)]
        for _ in range(rounds):
            taken: list[list[int]] = [[], []]
            for _ in range(steps):
                order.shuffle(engines)  # the same one twice in a row finds its data in the cache
                for on, engine in engines:
                    taken[on].append(engine.step())
            found.setdefault(case, []).append([statistics.median(each) / 1000 for each in taken])
        gc.collect()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", default="vllm@v0.26.0")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        print(json.dumps(measure(args.steps, args.rounds)))
        return 0
    from share_bench import run

    found = run("share_cost.py", args.release, ["--steps", str(args.steps), "--rounds", str(args.rounds)])
    print(f"{args.release}: scheduling time per step, on against off")
    worst = 0.0
    for case, figures in found.items():
        ratios = sorted(on / off for off, on in figures)
        off = statistics.median(each[0] for each in figures)
        middle = statistics.median(ratios)
        worst = max(worst, middle)
        print(f"  {case:24} {middle:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}) of {off:.0f} us")
    print(f"bound {BOUND}: {'kept' if worst <= BOUND else 'BROKEN'}")
    return int(worst > BOUND)


if __name__ == "__main__":
    sys.exit(main())
