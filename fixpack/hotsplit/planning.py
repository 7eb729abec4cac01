"""The planner's verbs as computations: a plan, its coverage, a re-rank.  Nothing here prints or writes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fixpack.errors import FixpackError, Problem, UsageError
from fixpack.hotsplit.evaluate import Evaluation, Split, evaluate, judged_by, split, stock_hot
from fixpack.hotsplit.inputs import problems
from fixpack.hotsplit.memory import Model
from fixpack.hotsplit.payload import counts, plan


class Judging(NamedTuple):
    """How held-out tokens are chosen and intervals drawn."""

    part: float = 0.3  # held out
    seed: int = 0
    resamples: int = 1000


class Planned(NamedTuple):
    """A placement by all given tokens, and how one made from a part of them does on the rest."""

    model: Model
    budget: int  # bytes
    weights: Mapping[str, float]
    counts: counts.Counts  # all files added up
    scores: counts.Table
    hot: plan.Hot
    covered: float  # of the tokens that it was made from
    stock: float  # the same by as many cells as whole layers
    split: Split
    held_out: Evaluation

    @property
    def cells(self) -> int:
        """Hot cells."""
        return sum(map(len, self.hot.values()))


def make(
    model: Model,
    several: Sequence[counts.Counts],
    held: Sequence[counts.Counts],
    budget: int,
    weights: Mapping[str, float],
    judging: Judging,
) -> Planned:
    """Plan ``budget`` bytes by counts.

    :param held: recordings that are only tested on.
    :raises UsageError: if counts cannot be used.
    """
    with problems():
        whole = counts.add(several)
        scores = counts.shares(whole, weights)
        cells = plan.cells_in(budget, model.cell)
        hot = plan.place(scores, cells)
        table = judged_by(whole, held=False)
        if not any(map(any, table.values())):
            raise counts.BadCounts(whole.source, "holds no token to test on")
        parts = split(several, held, judging.part, judging.seed)
        trained = plan.place(counts.shares(parts.train, weights), cells)
        judged = evaluate(trained, parts.tests, parts.how, seed=judging.seed, resamples=judging.resamples)
        covered = plan.coverage(hot, table)
        stock = plan.coverage(stock_hot(whole.layers, whole.experts, cells), table)
    return Planned(model, budget, counts.effective(whole, weights), whole, scores, hot, covered, stock, parts, judged)


def document(planned: Planned, files: Sequence[Mapping[str, str]], version: str) -> dict[str, Any]:
    """The plan as a file keeps it; the same for the same inputs, without a time."""
    meta = {
        "planner": version,
        "model": planned.model.name,
        counts.REVISION: planned.counts.revision or None,
        "budget_bytes": planned.budget,
        "cell_bytes": planned.model.cell,
        "cells": planned.cells,
        "weights": dict(planned.weights),
        "counts": list(files),
        "coverage": round(planned.covered, 6),
    }
    return plan.plan_document(plan.Plan(planned.model.experts, planned.hot, meta))


class Judged(NamedTuple):
    """A plan that was made before, on counts that it may not know."""

    plan: plan.Plan
    evaluation: Evaluation
    by_layer: dict[int, float]  # layer -> part of its tokens that the plan's hot experts serve


def judge(kept: plan.Plan, several: Sequence[counts.Counts], judging: Judging) -> Judged:
    """Judge a plan by counts, each file a recording of its own.

    :raises UsageError: if the counts cannot be used, or are of another revision than the plan.
    """
    with problems():
        whole = counts.add(several)
        revision = str(kept.meta.get(counts.REVISION) or "")
        counts.require_model(whole, tuple(kept.hot), kept.experts, revision)
        tests = [judged_by(each, held=False) for each in several]
        found = evaluate(kept.hot, tests, "given", seed=judging.seed, resamples=judging.resamples)
        table = counts.total(tests)
    by_layer = {}
    for layer, chosen in kept.hot.items():
        tokens = math.fsum(table[layer])
        by_layer[layer] = math.fsum(table[layer][expert] for expert in chosen) / tokens if tokens else 0.0
    return Judged(kept, found, by_layer)


class Reranked(NamedTuple):
    """A new list from offline and live counts, beside the old one; parts of the live tokens are 0 to 1."""

    scores: counts.Table
    old: plan.Hot
    new: plan.Hot
    tokens: int  # live decode tokens of the layer that saw fewest
    jaccard: float
    jaccard_by_layer: dict[int, float]
    old_covers: float
    new_covers: float
    oracle_covers: float
    stock_covers: float


def rerank(
    live: counts.Counts,
    offline: counts.Counts,
    weights: Mapping[str, float],
    *,
    cells: int,
    top_k: int,
    live_weight: float,
    revision: str = "",
) -> Reranked:
    """Blend what a server counted with the counts that it was planned by.

    :param revision: the model revision that files are taken to be of which do not say one.
    :raises UsageError: if the two cannot be blended.
    :raises FixpackError: if too little was counted live.
    """
    _same_revision(live, offline, revision)
    with problems(live.source):
        if live.shape != "C":
            hint = "the first file is what a server counted, the second one is what it was planned by"
            raise counts.BadCounts(live.source, 'no live counts: it has no "live"', hint=hint)
        if counts.DECODE not in live.train:
            raise counts.BadCounts(live.source, "has no live counts of decode")
        counts.require_model(live, offline.layers, offline.experts)
        table = live.train[counts.DECODE]
        tokens = plan.tokens_per_layer(table, top_k)
    if tokens < plan.MIN_LIVE_TOKENS:
        fewest = min(table, key=lambda layer: math.fsum(table[layer]))
        problem = Problem(
            "too_few_tokens",
            "too little was counted to rank by; the old list stays",
            file=live.source,
            expected=f"at least {plan.MIN_LIVE_TOKENS:,} decode tokens in every layer",
            found=f"{tokens:,} in layer {fewest}",
            hint="let the server count on",
        )
        raise FixpackError(problem)
    with problems():
        before = counts.shares(offline, weights)
        scores = plan.blend(before, counts.shares(live, {counts.DECODE: 1.0}), live_weight)
        old, new = plan.place(before, cells), plan.place(scores, cells)
        stock = stock_hot(live.layers, live.experts, cells)
        covers = [plan.coverage(each, table) for each in (old, new, plan.place(table, cells), stock)]
    by_layer = {layer: plan.jaccard({layer: old[layer]}, {layer: new[layer]}) for layer in new}
    return Reranked(scores, old, new, tokens, plan.jaccard(old, new), by_layer, *covers)


def reranked_document(
    found: Reranked, live: counts.Counts, offline: counts.Counts, files: Sequence[Mapping[str, str]], live_weight: float
) -> dict[str, Any]:
    """The blend as counts of shape A, for the next boot and the next re-rank."""
    said: dict[str, Any] = {key: live.meta[key] for key in ("since", "at", "note") if key in live.meta}
    meta = {
        counts.LIVE_WEIGHT: live_weight,
        "live_tokens_per_layer": found.tokens,
        counts.REVISION: live.revision or offline.revision or None,
        "live": {**files[0], **said},
        "offline": files[1],
    }
    return {"train": {counts.DECODE: {str(layer): row for layer, row in found.scores.items()}}, "meta": meta}


def _same_revision(live: counts.Counts, offline: counts.Counts, revision: str) -> None:
    """Experts of other weights are other experts: without the same revision a blend means nothing."""
    for each in (live, offline):
        if not (each.revision or revision):
            hint = (
                f'add it to the file\'s "meta", or say of which one it is: --{counts.REVISION.replace("_", "-")} HASH'
            )
            message = f'does not say which model it was counted on: no "{counts.REVISION}" in "meta"'
            raise UsageError(Problem("revision_unknown", message, file=each.source, hint=hint))
    a, b = live.revision or revision, offline.revision or revision
    if a != b or (revision and a != revision):
        message = "the counts are of different model revisions"
        expected, found = (revision, a) if revision and a != revision else (b, a)
        raise UsageError(Problem("revision_differs", message, file=live.source, expected=expected, found=found))
