"""How good a placement is on traffic that it was not made from.

Held-out counts come from the file itself, from files that were set aside, from a split of the files (one file per
conversation), or, from a single file, by thinning: each counted token goes to one side by a coin of the seed.
Everything random follows from the seed, through ``random.random()`` alone, whose sequence Python keeps.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from random import Random
from statistics import NormalDist
from typing import NamedTuple

from fixpack.hotsplit.payload import counts, plan

#: how a split was made -> what it says, and what its intervals do not
HOW = {
    "holdout": "held-out part of the files",
    "files": "by conversation: one file each, whole files held out",
    "thinning": "by thinning: every token goes to one side by a coin",
    "given": "none needed: the plan was made before",
    "in-sample": "none: ranked and tested on the same tokens",
}
UNIT = {
    "files": "conversations are drawn again",
    "tokens": "tokens are drawn again, as if independent: conversations differ by more than this interval shows",
}
LARGE = 1_000_000  # above it, a binomial is drawn as a normal


class Split(NamedTuple):
    """What to rank by and what to test on."""

    how: str  # a key of HOW
    train: counts.Counts
    tests: tuple[counts.Table, ...]  # one per held-out file, or one table


class Estimate(NamedTuple):
    """A part of the tokens, 0 to 1, with a 95 % interval by bootstrap."""

    value: float
    low: float
    high: float


class Evaluation(NamedTuple):
    """Coverage of one number of cells on held-out tokens."""

    how: str
    unit: str  # a key of UNIT: what the bootstrap draws again
    seed: int
    resamples: int
    cells: int
    test_tokens: int  # routed (token, expert) pairs that were tested on
    plan: Estimate
    oracle: Estimate  # placed by the test counts themselves: no placement of as many cells does better on them
    stock: Estimate  # as many cells as whole layers, the last ones, as vLLM's own offload leaves them


def judged_by(each: counts.Counts, *, held: bool) -> counts.Table:
    """The counts that a placement is judged by: decode, else prefill and decode mixed, else what there is."""
    phases = each.holdout if held else each.train
    for phase in (counts.DECODE, counts.MIXED, counts.PREFILL):
        if phase in phases:
            return phases[phase]
    raise counts.BadCounts(each.source, "has no held-out counts")


def split(several: Sequence[counts.Counts], held: Sequence[counts.Counts], part: float, seed: int) -> Split:
    """Decide what to rank by and what to test on.

    :param held: files that were set aside for testing.
    :param part: the part of the files, or of the tokens, to hold out.
    :raises BadCounts: if files do not fit together.
    """
    whole = counts.add(several)
    if held:
        for each in held:
            counts.require_model(each, whole.layers, whole.experts, whole.revision)
        return Split("holdout", whole, tuple(judged_by(each, held=False) for each in held))
    if all(each.holdout for each in several):
        return Split("holdout", whole, tuple(judged_by(each, held=True) for each in several))
    if len(several) > 1:
        random = Random(seed)
        order = sorted(several, key=lambda each: random.random())
        aside = min(max(1, round(part * len(order))), len(order) - 1)
        train = counts.add([each for each in several if each not in order[:aside]])
        return Split("files", train, tuple(judged_by(each, held=False) for each in several if each in order[:aside]))
    if any(number != int(number) for table in whole.train.values() for row in table.values() for number in row):
        return Split("in-sample", whole, (judged_by(whole, held=False),))  # shares are no tokens that one could divide
    random = Random(seed)
    train_tables, test_tables = {}, {}
    for phase, table in whole.train.items():
        train_tables[phase], test_tables[phase] = thin(table, part, random)
    train = whole._replace(train=train_tables)
    return Split("thinning", train, (judged_by(whole._replace(train=test_tables), held=False),))


def thin(table: counts.Table, part: float, random: Random) -> tuple[counts.Table, counts.Table]:
    """Split whole counts: each of their tokens goes to the second table with probability ``part``."""
    second = {layer: [binomial(int(number), part, random) for number in row] for layer, row in table.items()}
    first = {
        layer: [number - out for number, out in zip(row, second[layer], strict=True)] for layer, row in table.items()
    }
    return first, {layer: [float(number) for number in row] for layer, row in second.items()}


def binomial(number: int, chance: float, random: Random) -> int:
    """One draw of how many of ``number`` coins fall on their side, by the inverse of the distribution."""
    if number <= 0 or chance <= 0:
        return 0
    if chance >= 1:
        return number
    if number > LARGE:
        middle, spread = number * chance, math.sqrt(number * chance * (1 - chance))
        drawn = NormalDist(middle, spread).inv_cdf(min(max(random.random(), 1e-16), 1 - 1e-16))
        return min(max(round(drawn), 0), number)
    start, cumulative = _distribution(number, chance)
    return start + min(bisect_left(cumulative, random.random() * cumulative[-1]), len(cumulative) - 1)


@lru_cache(maxsize=100_000)
def _distribution(number: int, chance: float) -> tuple[int, list[float]]:
    """Cumulated weights of a binomial within ten standard deviations, and the first value they are for."""
    reach = 10 * math.sqrt(number * chance * (1 - chance)) + 10
    mode, odds = int((number + 1) * chance), chance / (1 - chance)
    below: list[float] = []
    above = [1.0]
    for k in range(mode, max(0, int(mode - reach)), -1):  # from k to k - 1
        below.append((below[-1] if below else 1.0) * k / ((number - k + 1) * odds))
    for k in range(mode, min(number, int(mode + reach))):  # from k to k + 1
        above.append(above[-1] * (number - k) * odds / (k + 1))
    return mode - len(below), list(accumulate(below[::-1] + above))


def stock_hot(layers: Sequence[int], experts: int, cells: int) -> plan.Hot:
    """As many cells as whole layers, the last ones: what is in HBM without the fix."""
    whole = min(cells // experts, len(layers))
    inside = set(sorted(layers)[len(layers) - whole :])
    return {layer: list(range(experts)) if layer in inside else [] for layer in sorted(layers)}


def evaluate(
    hot: plan.Hot, tests: Sequence[counts.Table], how: str, *, seed: int = 0, resamples: int = 1000
) -> Evaluation:
    """Judge a placement by held-out counts, beside the best one for them and stock's.

    :raises BadCounts: if nothing was counted.
    """
    table = counts.total(tests)
    cells = sum(map(len, hot.values()))
    experts = len(next(iter(table.values())))
    pairs = math.fsum(math.fsum(row) for row in table.values())
    if not pairs:
        raise counts.BadCounts("the held-out counts", "hold no token at all")
    oracle = plan.place(table, cells)
    unit = "files" if len(tests) > 1 else "tokens"
    draw = _by_file if unit == "files" else _by_token
    stock = stock_hot(list(table), experts, cells)
    found = [draw(each, tests, Random(seed), resamples) for each in (hot, oracle, stock)]
    return Evaluation(how, unit, seed, resamples, cells, int(pairs), *found)


def _interval(value: float, drawn: list[float]) -> Estimate:
    drawn.sort()
    last = len(drawn) - 1
    return Estimate(value, drawn[int(0.025 * last)], drawn[math.ceil(0.975 * last)])


def _hits(hot: plan.Hot, table: counts.Table) -> tuple[dict[int, float], dict[int, float]]:
    hits = {layer: math.fsum(table[layer][expert] for expert in chosen) for layer, chosen in hot.items()}
    return hits, {layer: math.fsum(row) for layer, row in table.items()}


def _by_file(hot: plan.Hot, tests: Sequence[counts.Table], random: Random, resamples: int) -> Estimate:
    sums = []
    for table in tests:
        hits, totals = _hits(hot, table)
        sums.append((math.fsum(hits.values()), math.fsum(totals.values())))
    drawn = []
    for _ in range(resamples):
        again = [sums[int(random.random() * len(sums))] for _ in sums]
        whole = math.fsum(total for _, total in again)
        drawn.append(math.fsum(hit for hit, _ in again) / whole if whole else 0.0)
    value = math.fsum(hit for hit, _ in sums) / math.fsum(total for _, total in sums)
    return _interval(value, drawn)


def _by_token(hot: plan.Hot, tests: Sequence[counts.Table], random: Random, resamples: int) -> Estimate:
    """Every layer's tokens are drawn again: how many of them are hot is a binomial of the layer's own coverage."""
    hits, totals = _hits(hot, tests[0])
    whole = math.fsum(totals.values())
    layers = [(int(totals[layer]), hits[layer] / totals[layer]) for layer in hits if totals[layer]]
    drawn = [sum(binomial(number, chance, random) for number, chance in layers) / whole for _ in range(resamples)]
    return _interval(math.fsum(hits.values()) / whole, drawn)


class Curve(NamedTuple):
    """Coverage of the first ``cells`` cells of a ranking, for a picture."""

    cells: tuple[int, ...]
    covered: tuple[float, ...]


def curve(scores: counts.Table, table: counts.Table, points: int = 200) -> Curve:
    """How coverage of ``table`` grows as cells are taken in the order of ``scores``."""
    ranked = plan.ranking(scores)
    grown = [0.0, *accumulate(table[layer][expert] for layer, expert in ranked)]
    steps = sorted({round(number * len(ranked) / points) for number in range(points + 1)})
    return Curve(tuple(steps), tuple(grown[step] / grown[-1] for step in steps))
