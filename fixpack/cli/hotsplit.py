"""``fixpack hotsplit``: which experts stay in HBM, how much traffic they serve, and what a machine can hold."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fixpack.cli import amounts

if TYPE_CHECKING:
    from fixpack.hotsplit.memory import Model
    from fixpack.hotsplit.planning import Judging

HELP = "plan which experts stay in HBM, from counts of routed tokens"


def configure(parser: argparse.ArgumentParser) -> None:
    """The sub-verbs of hotsplit and their options."""
    parser.epilog = "exit codes: 0 done; 1 the answer is no (rerank: too few tokens; memory: no fit); 2 bad input"
    verbs = parser.add_subparsers(dest="what", metavar="WHAT", required=True)

    def verb(name: str, text: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=text, description=text, allow_abbrev=False)
        sub.set_defaults(run_hotsplit=run)
        config = "the model's config.json (default: MiMo-V2.6-Pro-RL)"
        sub.add_argument("--config", metavar="FILE", default="", help=config)
        offload = "--cpu-offload-gb of the stock server (default: 320)"
        sub.add_argument("--offload-gib", metavar="N", type=amounts.gib, default="320", help=offload)
        sub.add_argument("--json", action="store_true", help="report as JSON on stdout")
        return sub

    sub = verb("plan", "choose the experts that stay in HBM", _plan)
    _counts(sub)
    _budget(sub, required=True)
    _ranking(sub)
    _judging(sub)
    sub.add_argument("-o", "--output", metavar="FILE", help="write the plan there, as JSON")
    sub.add_argument("--picture", metavar="FILE", help="draw it: .png or .svg (needs matplotlib)")
    sub.add_argument("--show", action="store_true", help="draw it in the terminal, instead of --json")

    sub = verb("coverage", "how much traffic a plan serves, or plans of several budgets would", _coverage)
    _counts(sub)
    one = sub.add_mutually_exclusive_group()
    one.add_argument("--plan", metavar="FILE", help="judge this plan, on all of COUNTS")
    budgets = "GiB of experts in HBM; repeatable (default: a range)"
    one.add_argument("--budget-gib", metavar="N", type=amounts.gib, action="append", help=budgets)
    _ranking(sub)
    _judging(sub)

    sub = verb("rerank", "blend what a server counted into the counts that it was planned by", _rerank)
    sub.add_argument("live", metavar="LIVE", help="a snapshot of the live counter")
    sub.add_argument("offline", metavar="OFFLINE", help="the counts, or re-ranked counts, that the server runs with")
    _budget(sub, required=False)
    _ranking(sub)
    against = "of LIVE, against 1 of OFFLINE (default: 1)"
    sub.add_argument("--live-weight", metavar="W", type=amounts.weight, default=1.0, help=against)
    sub.add_argument("-o", "--output", metavar="FILE", help="write the blended counts there, as JSON")

    sub = verb("memory", "what a machine can hold of the model: HBM, pinned memory, KV cache, context", _memory)
    hot = "GiB of hot experts; repeatable (default: a range)"
    one = sub.add_mutually_exclusive_group()
    one.add_argument("--hot-gib", metavar="N", type=amounts.gib, action="append", help=hot)
    one.add_argument("--plan", metavar="FILE", help="a plan: its hot experts, layer by layer")
    context = "--max-model-len; exit 1 if it does not fit"
    sub.add_argument("--context", metavar="TOKENS", type=amounts.count, default=0, help=context)
    for name, default, text in (
        ("--hbm-gib", "250", "HBM of the GPU"),
        ("--host-gib", "494", "host memory"),
        ("--host-other-gib", "59", "of the host memory, what else is in use"),
        ("--dense-gib", "32.3", "weights in HBM that are no experts"),
    ):
        sub.add_argument(name, metavar="N", type=amounts.gib, default=default, help=f"{text} (default: {default})")
    share = "part of the HBM that vLLM may use (default: 0.96)"
    sub.add_argument("--gpu-memory-utilization", metavar="P", type=amounts.part, default="0.96", help=share)


def _counts(sub: argparse.ArgumentParser) -> None:
    text = "counts of routed tokens, JSON or .json.gz; several are added up"
    sub.add_argument("counts", nargs="+", metavar="COUNTS", help=text)


def _budget(sub: argparse.ArgumentParser, *, required: bool) -> None:
    one = sub.add_mutually_exclusive_group(required=required)
    one.add_argument("--budget-gib", metavar="N", type=amounts.gib, help="GiB of experts in HBM")
    stock = "as much as stock leaves in HBM, w13 and w2 each counted where it is"
    one.add_argument("--stock-equal", action="store_true", help=stock + ("" if required else " (default)"))


def _ranking(sub: argparse.ArgumentParser) -> None:
    weights = "weights of the phases (default: decode=1,prefill=0)"
    sub.add_argument("--weights", metavar="W", default="decode=1,prefill=0", help=weights)
    sub.add_argument("--model-revision", metavar="HASH", default="", help="revision of the model that was counted")


def _judging(sub: argparse.ArgumentParser) -> None:
    held = "counts to test on, and not to rank by; repeatable"
    sub.add_argument("--holdout", metavar="FILE", action="append", default=[], help=held)
    part = "part of the files or tokens to hold out where none are given (default: 0.3)"
    sub.add_argument("--test-part", metavar="P", type=amounts.part, default="0.3", help=part)
    sub.add_argument("--seed", metavar="N", type=int, default=0, help="of the split and the intervals (default: 0)")
    draws = "draws of the bootstrap (default: 1000)"
    sub.add_argument("--resamples", metavar="N", type=amounts.count, default=1000, help=draws)


def run(args: argparse.Namespace) -> int:
    """Run one sub-verb; returns the exit code."""
    done: int = args.run_hotsplit(args)
    return done


def _model(args: argparse.Namespace) -> Model:
    from fixpack.hotsplit.inputs import read_model

    return read_model(args.config)


def _weights(args: argparse.Namespace) -> Mapping[str, float]:
    from fixpack.hotsplit.inputs import problems
    from fixpack.hotsplit.payload import counts

    with problems("--weights"):
        weights: Mapping[str, float] = counts.parse_weights(args.weights)
    return weights


def _budget_bytes(args: argparse.Namespace, model: Model) -> int:
    from fixpack.hotsplit.memory import stock

    given: int | None = args.budget_gib
    return stock(model, args.offload_gib).hbm if given is None else given


def _how_judged(args: argparse.Namespace) -> Judging:
    from fixpack.hotsplit.planning import Judging

    return Judging(float(args.test_part), args.seed, args.resamples)


def _not_an_input(output: str | None, inputs: Sequence[str]) -> None:
    """Refuse to write over what was read: it could not be run again.

    :raises UsageError: if it is one.
    """
    from fixpack.errors import Problem, UsageError

    if output and os.path.realpath(output) in {os.path.realpath(path) for path in inputs}:
        raise UsageError(Problem("bad_usage", "is an input; write to another file", file=output))


def _print(args: argparse.Namespace, body: Mapping[str, Any], text: str) -> None:
    print(json.dumps({"schema_version": 1, **body}, indent=1, allow_nan=False) if args.json else text)


def _plan(args: argparse.Namespace) -> int:
    from fixpack import __version__
    from fixpack.errors import Problem, UsageError
    from fixpack.hotsplit import inputs, planning, report
    from fixpack.hotsplit.memory import stock

    if args.show and args.json:
        raise UsageError(Problem("bad_usage", "--show and --json exclude each other"))
    if args.picture and args.output and os.path.realpath(args.picture) == os.path.realpath(args.output):
        message = "is named twice; the plan and its picture need a file each"
        raise UsageError(Problem("bad_usage", message, file=args.output))
    for output in (args.output, args.picture):
        _not_an_input(output, [*args.counts, *args.holdout])
    if args.picture:
        from fixpack.hotsplit import picture

        picture.check(args.picture)
    if args.show:
        from fixpack.hotsplit.terminal import show
    model = _model(args)
    several = inputs.read_counts(args.counts, model, args.model_revision)
    held = inputs.read_counts(args.holdout, model, args.model_revision)
    made = planning.make(model, several, held, _budget_bytes(args, model), _weights(args), _how_judged(args))
    document = planning.document(made, inputs.provenance(args.counts), __version__)
    placed = stock(model, args.offload_gib)
    drawn = picture.draw(made, args.picture) if args.picture else b""
    for path, data in ((args.output, inputs.as_bytes(document)), (args.picture, drawn)):
        if path:
            inputs.write(path, data)
            report.wrote(path)
    _print(args, report.plan_json(made, placed, document), report.plan_text(made, placed))
    if args.show:
        show(made)
    return 0


def _coverage(args: argparse.Namespace) -> int:
    from fixpack.errors import Problem, UsageError
    from fixpack.hotsplit import inputs, planning, report
    from fixpack.hotsplit.memory import stock

    model = _model(args)
    several = inputs.read_counts(args.counts, model, args.model_revision)
    held = inputs.read_counts(args.holdout, model, args.model_revision)
    if args.plan:
        if held:
            message = "--plan is judged on all of COUNTS; --holdout is for plans that are made here"
            raise UsageError(Problem("bad_usage", message))
        judged = planning.judge(inputs.read_plan(args.plan, model), several, _how_judged(args))
        _print(args, report.judged_json(judged), report.judged_text(judged, model))
        return 0
    budgets = args.budget_gib
    if not budgets:
        parts = [model.cells * tenth // 10 * model.cell for tenth in (1, 2, 3, 4, 5)]
        budgets = sorted({*parts, stock(model, args.offload_gib).hbm})
    judging, weights = _how_judged(args), _weights(args)
    rows = [planning.make(model, several, held, budget, weights, judging) for budget in budgets]
    _print(args, report.coverage_json(rows), report.coverage_text(rows))
    return 0


def _rerank(args: argparse.Namespace) -> int:
    from fixpack.hotsplit import inputs, planning, report

    _not_an_input(args.output, [args.live, args.offline])
    model = _model(args)
    live, offline = inputs.read_counts([args.live, args.offline], model)
    files = inputs.provenance([args.live, args.offline])
    budget = _budget_bytes(args, model)
    found = planning.rerank(
        live,
        offline,
        _weights(args),
        cells=budget // model.cell,
        top_k=model.top_k,
        live_weight=args.live_weight,
        revision=args.model_revision,
    )
    if args.output:
        document = planning.reranked_document(found, live, offline, files, args.live_weight)
        inputs.write(args.output, inputs.as_bytes(document))
        report.wrote(args.output)
    _print(args, report.reranked_json(found, budget), report.reranked_text(found, budget))
    return 0


def _memory(args: argparse.Namespace) -> int:
    from fixpack.hotsplit import inputs, memory, report_memory

    model = _model(args)
    machine = memory.Machine(
        args.hbm_gib, args.host_gib, args.gpu_memory_utilization, args.dense_gib, args.host_other_gib
    )
    placed = memory.stock(model, args.offload_gib)
    given = bool(args.hot_gib or args.plan)
    kept = inputs.read_plan(args.plan, model) if args.plan else None
    if kept:
        asked = [[len(chosen) for chosen in kept.hot.values()]]
    else:
        budgets = args.hot_gib or memory.usual_budgets(model, placed)
        asked = [memory.spread(model, budget) for budget in budgets]
    solved = [memory.solve(model, machine, placed, each, context=args.context) for each in asked]
    body = report_memory.as_json(model, machine, placed, solved)
    _print(args, body, report_memory.as_text(model, machine, placed, solved, args.context))
    fit = [each.fits for each in solved]
    return 0 if (all(fit) if given else any(fit)) else 1
