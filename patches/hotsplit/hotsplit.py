"""Splits each MoE layer's experts by measured use: the hot ones in HBM, the cold ones in exact-size pinned host memory.

``before_load`` checks everything that can be known before the weights are read; ``after_load`` makes the plan, logs it,
and splits layer by layer.  Both do nothing unless a HOTSPLIT_ variable is set (hotsplit_settings lists them).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import nn

from vllm._fixpack import hotsplit_counts, hotsplit_guards, hotsplit_order, hotsplit_plan, hotsplit_settings
from vllm._fixpack.hotsplit_banks import WEIGHTS, SCALES, Split, build, publish
from vllm._fixpack.hotsplit_counter import Counter, Snapshots
from vllm._fixpack.hotsplit_machine import Machine
from vllm._fixpack.hotsplit_order import GIB, Part, Stop
from vllm._fixpack.hotsplit_settings import Settings
from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.models.utils import extract_layer_index

logger = init_logger(__name__)


class Source(NamedTuple):
    """Where the plan comes from: counts, or a plan that was made before."""

    counts: hotsplit_counts.Counts | None
    plan: hotsplit_plan.Plan | None


class Layer(NamedTuple):
    """A MoE layer as loaded."""

    number: int
    module: RoutedExperts
    cell: int  # bytes of one expert's two weight matrices
    hbm: int  # bytes of its weights in HBM ...
    host: int  # ... and in host memory
    scales: int


def before_load(vllm_config: Any, model_config: Any) -> None:
    """Refuse what would fail after the weights are read: bad switches, options, counts.

    :raises ValueError: with everything that is wrong.
    """
    settings = hotsplit_settings.read()
    if settings is not None:
        hotsplit_guards.refuse_config(vllm_config, model_config, settings)
        _source(settings)


def after_load(model: nn.Module, model_config: Any, machine: Machine | None = None) -> None:
    """Split the loaded model as the HOTSPLIT_ variables say.

    :raises RuntimeError: if a layer cannot be split, or the hot experts do not fit; nothing is changed then.  Also if
        host memory does not come back after the first layer; the model must not be used then.
    :raises ValueError: if the counts are of another model.
    """
    settings = hotsplit_settings.read()
    if settings is None:
        return
    modules = [(name, module) for name, module in model.named_modules() if isinstance(module, RoutedExperts)]
    hotsplit_guards.refuse_layers(modules)
    layers = _layers(modules)
    revision = _revision(model_config)
    machine = machine or Machine(layers[0].module.w13_weight.device)
    if settings.counts:
        hot = _plan(settings, layers, revision)
        _split(settings, layers, hot, machine)
    if settings.live:
        _count(settings, layers, revision)


def _source(settings: Settings) -> Source:
    if not settings.counts:
        return Source(None, None)
    try:
        document = hotsplit_counts.read_json(settings.counts)
    except OSError as error:
        raise ValueError(f"HOTSPLIT_COUNTS={settings.counts} cannot be read: {error.strerror}") from None
    if isinstance(document, dict) and "hotsplit_plan" in document:
        if settings.hot_set:
            raise ValueError(f"{settings.counts} is a plan and has its own budget: unset HOTSPLIT_HOT_GIB")
        return Source(None, hotsplit_plan.parse_plan(document, settings.counts))
    counts = hotsplit_counts.parse(document, settings.counts)
    hotsplit_counts.shares(counts, settings.weights)  # it must be possible
    return Source(counts, None)


def _revision(model_config: Any) -> str:
    """The commit of the weights, as the hub names it; "" for a folder without one."""
    return str(getattr(model_config.hf_config, "_commit_hash", None) or model_config.revision or "")


def _layers(modules: Sequence[tuple[str, RoutedExperts]]) -> list[Layer]:
    found: dict[int, Layer] = {}
    for name, module in modules:
        number = extract_layer_index(name)
        if number in found:
            other = found[number].module.layer_name
            raise RuntimeError(f"hotsplit: two MoE layers are number {number}: {other}, {name}")
        weights = [getattr(module, each) for each in WEIGHTS]
        host = sum(each.nbytes for each in weights if getattr(each, "_vllm_is_uva_offloaded", False))
        total = sum(each.nbytes for each in weights)
        scales = sum(getattr(module, each).nbytes for each in SCALES)
        found[number] = Layer(number, module, total // module.global_num_experts, total - host, host, scales)
    layers = [found[number] for number in sorted(found)]
    for what, values in (
        ("experts", {each.module.global_num_experts for each in layers}),
        ("choices per token", {each.module.top_k for each in layers}),
    ):
        if len(values) != 1:
            raise RuntimeError(f"hotsplit: the MoE layers differ in {what}: {sorted(values)}")
    return layers


def _plan(settings: Settings, layers: Sequence[Layer], revision: str) -> hotsplit_plan.Hot:
    """The hot experts of each layer; logs what they are worth."""
    source = _source(settings)
    numbers, experts = [each.number for each in layers], layers[0].module.global_num_experts
    cell = hotsplit_plan.one_cell_size({each.number: each.cell for each in layers})
    stock_tensors = sum(each.hbm for each in layers)
    stock = sum(each.hbm for each in layers if not each.host)
    coverage = ""
    if source.plan is not None:
        plan = source.plan
        if list(plan.hot) != numbers or plan.experts != experts:
            raise ValueError(
                f"{settings.counts} is a plan for layers {_span(plan.hot)} of {plan.experts} experts, the model has "
                f"layers {_span(numbers)} of {experts}"
            )
        named = str(plan.meta.get(hotsplit_counts.REVISION) or "")
        if revision and named and named != revision:
            raise ValueError(f"{settings.counts} is a plan for revision {named}, the model is {revision}")
        hot = plan.hot
        budget = sum(map(len, hot.values())) * cell
    else:
        assert source.counts is not None
        hotsplit_counts.require_model(source.counts, numbers, experts, revision)
        scores = hotsplit_counts.shares(source.counts, settings.weights)
        if isinstance(settings.hot, float):
            budget = int(settings.hot * GIB)
        else:
            budget = stock if settings.hot == hotsplit_settings.STOCK else stock_tensors
        hot = hotsplit_plan.place(scores, hotsplit_plan.cells_in(budget, cell))
        coverage = f", train-weighted coverage {100 * hotsplit_plan.coverage(hot, scores):.1f} %"
    cells = sum(map(len, hot.values()))
    logger.info("%s", hotsplit_plan.headline(len(layers), budget, stock, cells, len(layers) * experts))
    logger.info(
        "hotsplit plan: cell %.2f MiB, stock HBM by tensor %.2f GiB, by whole layer %.2f GiB, cold bank %.2f GiB%s",
        cell / (1 << 20), stock_tensors / GIB, stock / GIB, (len(layers) * experts - cells) * cell / GIB, coverage,
    )  # fmt: skip
    logger.info("hotsplit plan: hot per layer %s", " ".join(f"{number}:{len(hot[number])}" for number in numbers))
    return hot


def _split(settings: Settings, layers: Sequence[Layer], hot: hotsplit_plan.Hot, machine: Machine) -> None:
    cold = hotsplit_plan.cold_of(hot, layers[0].module.global_num_experts)
    by_number = {each.number: each for each in layers}
    parts = []
    for each in layers:
        sizes = [len(chosen[each.number]) * each.cell for chosen in (hot, cold)]
        parts.append(Part(each.number, *sizes, each.scales, each.hbm, each.host))
    left = hotsplit_order.to_split(parts)
    margin = hotsplit_order.margin(left)
    started = time.monotonic()
    free, available = machine.hbm_free(), machine.host_available()
    expected = hotsplit_order.replay(left, free, available, settings.floor)
    logger.info(
        "hotsplit order: HBM free %.1f GiB, host avail %.1f GiB, margin %.1f GiB, host floor %.1f GiB; expected lowest "
        "HBM free %.1f GiB, lowest host avail %.1f GiB",
        free / GIB, available / GIB, margin / GIB, settings.floor / GIB, expected.lowest_hbm / GIB,
        expected.lowest_host / GIB,
    )  # fmt: skip
    if expected.stop is not None and expected.stop.kind == "hbm":
        raise RuntimeError(
            f"{expected.stop.text(settings.floor)}: the hot experts do not fit; lower HOTSPLIT_HOT_GIB, or raise "
            "--cpu-offload-gb so that fewer experts are in HBM when the split begins"
        )
    if settings.dry_run:
        if expected.stop is not None:
            logger.warning("%s", expected.stop.text(settings.floor))
        would = len(expected.order)
        logger.info("hotsplit dry run: %d of %d layers would be split; nothing was changed", would, len(left))
        return
    proven = False
    while left:
        free, available = machine.hbm_free(), machine.host_available()
        part = hotsplit_order.choose(left, free, available, margin, settings.floor)
        if isinstance(part, Stop):
            stay = " ".join(str(each.layer) for each in left)
            logger.warning("%s; %d layers stay as loaded: %s", part.text(settings.floor), len(left), stay)
            break
        layer = by_number[part.layer]
        banks = build(layer.module, hot[part.layer], cold[part.layer], machine.in_hbm, machine.in_host)
        machine.wait()  # the copies read what is freed next
        publish(layer.module, Split(banks))
        machine.release()
        left.remove(part)
        if part.host and not proven:
            lost = hotsplit_order.returns(part, available, machine.host_available())
            if lost:
                raise RuntimeError(
                    f"hotsplit: {lost}. Offloaded weights must be pinned at their exact size, not registered or "
                    "cached: apply the fix exact-pin, or set VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY=1"
                )
            proven = True
    logger.info(
        "hotsplit done in %.0fs; HBM free %.1f GiB; host avail %.1f GiB",
        time.monotonic() - started, machine.hbm_free() / GIB, machine.host_available() / GIB,
    )  # fmt: skip


def _count(settings: Settings, layers: Sequence[Layer], revision: str) -> None:
    first = layers[0].module
    numbers = [each.number for each in layers]
    counter = Counter(numbers, first.global_num_experts, first.top_k, settings.decode_max, first.w13_weight.device)
    for row, layer in enumerate(layers):
        banks = layer.module._hotsplit.banks if getattr(layer.module, "_hotsplit", None) else ()
        layer.module._hotsplit = Split(banks, counter, row)
    meta = {
        "layers": len(layers),
        "experts": first.global_num_experts,
        "top_k": first.top_k,
        "decode_max": settings.decode_max,
        hotsplit_counts.REVISION: revision,
    }
    Snapshots(counter, settings.live, settings.live_seconds, meta).start()
    logger.info("hotsplit live counter: %d layers", len(layers))
    logger.info("hotsplit live counter: %s every %.0f s", settings.live, settings.live_seconds)


def _span(numbers: Sequence[int] | Any) -> str:
    listed = sorted(numbers)
    if listed and listed == list(range(listed[0], listed[-1] + 1)):
        return f"{listed[0]} to {listed[-1]}"
    return str(listed)
