#!/usr/bin/env python3
"""What each fix costs in the serving loop: seconds per step on the CPU harness, as ratios against stock in one run.

    python benchmarks/cost.py [FIX...] [--profile gaudi2-v0.26.0] [--rounds 3] [--steps 64] [--repeats 8] [--json FILE]

Trees are made as `fixpack prove` makes them: stock, each fix with what it requires, and all default fixes together.
In each round every tree runs in fresh interpreters, in an order shuffled per round.  A tree's figure in a round is the
least CPU time per step of all repeats; its ratio is that over stock's of the same round.  Shown are the median ratio
over the rounds and, behind it, the lowest and the highest.

Inactive: 8 requests that only decode, 64 steps, with asynchronous scheduling; nothing in them triggers a fix, but what
a fix does at every step counts.  Active: a workload that triggers the fix, where that is simple.

The row "stock again" is stock against itself.  A fix's ratio is called "not measurable" if its median is not further
from 1 than the furthest of that row's, whatever the workload, if its rounds lie on both sides of 1, or if there were
fewer than three: such figures cannot tell the fix from stock, and it takes a quieter machine, or more rounds, to say
more.  Nor do they show what a step costs on a Gaudi: there device copies and graphs count, and here the tiny model
makes the host's share large.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from fixpack import registry  # noqa: E402
from fixpack.crosscheck import closure  # noqa: E402
from fixpack.errors import FixpackError  # noqa: E402
from fixpack.model import Profile, Registry, Release  # noqa: E402
from fixpack.proof_trees import clone, lend_bytecode  # noqa: E402
from fixpack.prove import Lab  # noqa: E402
from fixpack.prove_lab import real_lab  # noqa: E402

STEPS = ROOT / "benchmarks" / "cost_steps.py"
MARK = "seconds per step: "
STOCK, AGAIN, ALL = "stock", "stock again", "all"
INACTIVE = "decode"
ENOUGH = 3  # rounds; in fewer, one disturbed interpreter looks like a cost

#: fix -> the workload that triggers it.  Others have none: stock cannot go on after the trigger (async-discard-counter,
#: rank-exception-fatal, gpt-oss-long-prefill), it is rare by nature (resumed-rows-reset), the work is not done in a
#: step of the runner (logprobs-decode-guard: in the server; rope-cpu-cache: while the model is built), or the tiny
#: models do not have the place
ACTIVE = {
    "sampling-rows-refresh": "arrivals",
    "prompt-order": "arrivals",
    "structured-output-rows": "structured",
    "bad-words-index": "bad-words",
    "logitsprocs-rows": "logit-bias",
    "resumed-prefill-logits": "preemptions",
    "async-inputs": "skips",
    "gather-logprobs-int32": "logprobs",
    "swa-decode-window": "window",
    "sink-once": "window",
}

#: these run in an interpreter of their own, with these switches: on stock, the tiny gpt-oss needs flat batches
APART = {"window": {"VLLM_FLATTEN_INPUT": "1"}}


class Tree(NamedTuple):
    """One row: the fixes that its trees have, what it runs, and where its trees are."""

    name: str
    fixes: tuple[str, ...]
    workloads: tuple[str, ...]
    at: Mapping[str, str]  # distribution -> folder


Figures = dict[str, dict[str, list[float]]]  # tree -> workload -> one figure per round


def plan(loaded: Registry, profile: Profile, fixes: Sequence[str], folder: Path, active: bool) -> list[Tree]:
    """The rows of a run, without making anything."""
    used = tuple(dict.fromkeys(ACTIVE[name] for name in fixes if active and name in ACTIVE))
    rows = [(STOCK, (), used), (AGAIN, (), used)]
    pins = profile.releases
    rows += [(name, closure(loaded, (name,), pins), tuple(w for w in used if w == ACTIVE.get(name))) for name in fixes]
    rows.append((ALL, closure(loaded, profile.fixes, pins), used))
    made = []
    for number, (name, chosen, triggers) in enumerate(rows):
        place = 0 if name == AGAIN else number  # the same trees as stock
        at = {dist: str(folder / str(place) / dist) for dist in profile.releases}
        made.append(Tree(name, tuple(chosen), (INACTIVE, *triggers), at))
    return made


def make(lab: Lab, releases: Sequence[Release], trees: Sequence[Tree]) -> None:
    """Lay the rows' trees out and apply the fixes, as the prover does."""
    for tree in trees:
        if tree.name == AGAIN:
            continue
        for release in releases:
            clone(lab.tree(release), tree.at[release.distribution])
            if tree.fixes:
                lend_bytecode(trees[0].at[release.distribution], tree.at[release.distribution])
        if tree.fixes:
            lab.apply(releases, tree.fixes, tree.at)
        else:
            run(lab, tree, [INACTIVE], 1, 1)  # leaves bytecode, which the other trees borrow


def run(lab: Lab, tree: Tree, workloads: Sequence[str], steps: int, repeats: int) -> dict[str, list[list[float]]]:
    """The workloads in fresh interpreters: workload -> [CPU, wall] seconds per step of each repeat."""
    seen: dict[str, list[list[float]]] = {}
    groups = [[name for name in workloads if name not in APART], *([name] for name in workloads if name in APART)]
    for names in filter(None, groups):
        env = {**lab.env(tree.at), **APART.get(names[0], {})}
        env.pop("PYTHONPYCACHEPREFIX", None)  # bytecode goes into the throw-away tree
        command = [sys.executable, str(STEPS), *names, "--steps", str(steps), "--repeats", str(repeats)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        told = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
        if done.returncode or not told:
            raise SystemExit(f"{tree.name}: {' '.join(names)} failed\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        seen.update(json.loads(told[-1].removeprefix(MARK)))
    return seen


def ratios(figures: Figures, tree: str, workload: str) -> list[float]:
    """A row's figure over stock's, round by round."""
    pairs = zip(figures[tree].get(workload, []), figures[STOCK].get(workload, []), strict=False)
    return [mine / stock for mine, stock in pairs]


def cell(figures: Figures, tree: str, workload: str) -> str:
    """Median, lowest and highest ratio, and whether stock against itself is as far from 1."""
    found = ratios(figures, tree, workload)
    if not found:
        return "-"
    noise = max(abs(each - 1) for name in figures[AGAIN] for each in ratios(figures, AGAIN, name))
    middle, least, most = statistics.median(found), min(found), max(found)
    text = f"{middle:.3f} ({least:.3f}-{most:.3f})"
    seen = len(found) >= ENOUGH and abs(middle - 1) > noise and not least <= 1 <= most
    return text if tree == AGAIN or seen else f"{text} not measurable"


def table(figures: Figures, trees: Sequence[Tree]) -> str:
    """The ratios of all rows; one line per row and active workload."""
    lines = [f"{'':<24} {'inactive (decode)':<38} active"]
    for tree in trees:
        if tree.name == STOCK:
            continue
        cells = [f"{name}: {cell(figures, tree.name, name)}" for name in tree.workloads if name != INACTIVE] or ["-"]
        lines.append(f"{tree.name:<24} {cell(figures, tree.name, INACTIVE):<38} {cells[0]}".rstrip())
        lines += [f"{'':<63} {more}" for more in cells[1:]]
    stock = (f"{name} {statistics.median(each) * 1e3:.2f}" for name, each in figures[STOCK].items())
    return "\n".join([*lines, f"stock, CPU ms per step: {', '.join(stock)}"])


def measure(args: argparse.Namespace) -> tuple[list[Tree], Figures, list[dict[str, Any]]]:
    """Make the trees and run all rounds: the rows, their figures, and every single time."""
    loaded = registry.load(str(ROOT))
    profile = registry.find_profile(loaded, args.profile)
    known = (*profile.fixes, *profile.opt_in)
    for name in args.fixes:
        if name not in known:
            raise SystemExit(f"{profile.name} has no fix {name!r}: {', '.join(known)}")
    lab = real_lab(loaded)
    releases = loaded.profile_releases(profile)
    missing = [lab.fetch(release) for release in releases if not lab.tree(release)]
    if missing:
        raise SystemExit(f"a source is missing: {' && '.join(missing)}")
    os.makedirs(lab.scratch, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cost-", dir=lab.scratch) as folder:
        trees = plan(loaded, profile, args.fixes or known, Path(folder), not args.inactive)
        make(lab, releases, trees)
        figures: Figures = {tree.name: {name: [] for name in tree.workloads} for tree in trees}
        every = []
        for number in range(args.rounds):
            for tree in random.sample(trees, len(trees)):
                seen = run(lab, tree, tree.workloads, args.steps, args.repeats)
                every.append({"round": number, "tree": tree.name, "load": os.getloadavg()[0], "seconds": seen})
                for name, times in seen.items():
                    figures[tree.name][name].append(min(used for used, _ in times))
    return trees, figures, every


def main() -> int:
    """Run, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fixes", nargs="*", metavar="FIX", help="only these (default: all of the profile)")
    parser.add_argument("--profile", default="gaudi2-v0.26.0")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--inactive", action="store_true", help="only the workload that triggers nothing")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    try:
        trees, figures, every = measure(args)
    except FixpackError as error:
        raise SystemExit("\n".join(problem.message for problem in error.problems)) from error
    loads = [each["load"] for each in every]
    print(
        f"{args.profile}: {args.rounds} rounds of {args.repeats} x {args.steps} steps, {os.cpu_count()} cores, "
        f"load {min(loads):.1f} to {max(loads):.1f}; CPU time per step over stock's, median (lowest-highest)"
    )
    print(table(figures, trees))
    if args.json:
        record = {"profile": args.profile, "steps": args.steps, "runs": every, "figures": figures}
        args.json.write_text(json.dumps(record, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
