"""hotsplit: each MoE layer's experts in two banks, by measured use; what a token gets stays what it was.

The loader, the routed experts, the modular kernel and Marlin's code around its kernels are the release's own; the
machine's memory is reported by a stand-in.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import marlin
import pytest
import torch

GIB = 1 << 30
LAYERS = (1, 2, 3, 4)
BUDGET = 24  # experts of 64
BOUND = 2.8e-3  # relative, per layer: of 384 experts 126 hot, 8 per token; here 2.6e-3 at worst, half and half


@pytest.fixture(scope="module")
def host() -> Iterator[marlin.Host]:
    with marlin.gpu() as made:
        yield made


@pytest.fixture
def lab(host: marlin.Host, monkeypatch: pytest.MonkeyPatch) -> marlin.Lab:
    """A machine with room for everything; the fix, if it is there, sees that."""
    for name in [name for name in os.environ if name.startswith("HOTSPLIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("VLLM_USE_DEEP_GEMM", "0")
    lab = marlin.Lab(host)
    try:
        from vllm._fixpack.hotsplit_machine import Machine
    except ModuleNotFoundError:  # stock
        pass
    else:
        monkeypatch.setattr(Machine, "hbm_free", lambda self: 100 * GIB)
        monkeypatch.setattr(Machine, "wait", lambda self: None)
        monkeypatch.setattr(Machine, "release", lambda self: None)
        Ledger(lab, monkeypatch, 200, 1.0, 1.0)
    return lab


class Ledger:
    """Host memory that moves with the banks; ``returned`` is the part of what is freed that comes back.

    With ``scale``, bytes of the tiny layers count for so many.
    """

    def __init__(
        self, lab: marlin.Lab, monkeypatch: pytest.MonkeyPatch, available: float, returned: float, scale: float
    ) -> None:
        from vllm._fixpack import hotsplit, hotsplit_order
        from vllm._fixpack.hotsplit_machine import Machine

        self.available = self.lowest = available * GIB
        publish, take = hotsplit.publish, Machine.in_host

        def move(size: float) -> None:
            self.available += size * scale
            self.lowest = min(self.lowest, self.available)

        def in_host(machine: Any, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
            made = take(machine, shape, dtype)
            move(-made.nbytes)
            return made

        def freed(experts: Any, split: Any) -> None:
            there = sum(each.nbytes for each in tensors(experts)[:2] if lab.host.holds(each))
            publish(experts, split)
            move(there * returned)

        def part(layer: int, *sizes: int) -> Any:
            return hotsplit_order.Part(layer, *(int(size * scale) for size in sizes))

        monkeypatch.setattr(Machine, "in_host", in_host)
        monkeypatch.setattr(Machine, "host_available", lambda machine: int(self.available))
        monkeypatch.setattr(hotsplit, "publish", freed)
        monkeypatch.setattr(hotsplit, "Part", part)


class Said(logging.Handler):
    """What vLLM logs."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def about(self, what: str) -> list[str]:
        return [line for line in self.lines if line.startswith(what)]


@pytest.fixture
def said() -> Iterator[Said]:
    handler, logger = Said(), logging.getLogger("vllm")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


def uneven(layer: int, experts: int = marlin.EXPERTS) -> list[int]:
    """Counts of which a few experts have most, others per layer."""
    return [1000 + expert if expert % 3 == layer % 3 else 1 + expert for expert in range(experts)]


def counts(path: Path, rows: dict[int, Sequence[int]] | None = None) -> Path:
    rows = rows or {layer: uneven(layer) for layer in LAYERS}
    path.write_text(json.dumps({"train": {"decode": {str(layer): list(row) for layer, row in rows.items()}}}))
    return path


def ask(monkeypatch: pytest.MonkeyPatch, file: Path, experts: float = BUDGET, **switches: str) -> None:
    monkeypatch.setenv("HOTSPLIT_COUNTS", str(file))
    monkeypatch.setenv("HOTSPLIT_HOT_GIB", repr(experts * marlin.CELL / GIB))
    for name, value in switches.items():
        monkeypatch.setenv(f"HOTSPLIT_{name}", value)


def banks(lab: marlin.Lab, layer: int) -> Sequence[Any]:
    split = lab.routed(lab.network, layer).__dict__.get("_hotsplit")
    assert split is not None, f"layer {layer} is not split"
    return split.banks  # type: ignore[no-any-return]


# What is in HBM, and what a token gets.


def test_experts_in_hbm(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many experts as asked for, in the layers where the counts want them; the others are in host memory."""
    ask(monkeypatch, counts(tmp_path / "counts.json"))
    lab.load()
    found = [lab.in_hbm(layer) for layer in LAYERS]
    cells = [(layer, expert) for layer in LAYERS for expert in range(marlin.EXPERTS)]
    shares = sorted((uneven(layer)[expert] / sum(uneven(layer)), layer, expert) for layer, expert in cells)
    wanted = [sum(at == layer for _, at, _ in shares[-BUDGET:]) for layer in LAYERS]
    assert found == wanted, f"experts in HBM by layer: {found}"


def test_requests_served_from_hbm(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many experts as stock has in whole layers; with the counts of these requests, HBM serves what it can."""
    lab.load()
    x = marlin.tokens(64)
    chosen: dict[int, torch.Tensor] = {}
    for layer in LAYERS:
        experts = lab.routed(lab.network, layer)
        stock = experts.forward_modular

        def spy(*args: Any, _stock: Any = stock, _layer: int = layer, **kwargs: Any) -> Any:
            chosen[_layer] = kwargs["topk_ids"]
            return _stock(*args, **kwargs)

        monkeypatch.setattr(experts, "forward_modular", spy)
    lab.run(x)
    used = {layer: torch.bincount(ids.flatten(), minlength=marlin.EXPERTS) for layer, ids in chosen.items()}
    ask(monkeypatch, counts(tmp_path / "counts.json", {layer: row.tolist() for layer, row in used.items()}), 32)
    lab.load()
    served = 0
    for layer in LAYERS:
        experts = lab.routed(lab.network, layer)
        split = experts.__dict__.get("_hotsplit")
        whole = SimpleNamespace(w13=experts.w13_weight, w2=experts.w2_weight, expert_map=None)
        for bank in split.banks if split else [whole]:
            if not lab.host.holds(bank.w13) and not lab.host.holds(bank.w2):
                there = slice(None) if bank.expert_map is None else bank.expert_map >= 0
                served += int(used[layer][there].sum())
    best = sum(sorted((int(count) for row in used.values() for count in row), reverse=True)[:32])
    total = 64 * marlin.TOP_K * len(LAYERS)
    assert served == best > total / 2, f"{served} of {total} choices are served from HBM, could be {best}"


@pytest.mark.parametrize("hot", [1, 5, 8, 15], ids="{} hot".format)
def test_output_of_two_banks(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hot: int) -> None:
    """Within the rounding of two 16-bit sums instead of one, layer by layer; finite, whatever a workspace held."""
    stock = lab.load()
    inputs = layer_inputs(lab)
    wanted = {layer: apply(lab, layer, *inputs[layer]) for layer in LAYERS}
    rows = {layer: [100 if (expert * 7 + layer) % 16 < hot else 1 for expert in range(16)] for layer in LAYERS}
    ask(monkeypatch, counts(tmp_path / "counts.json", rows), hot * len(LAYERS))
    assert lab.load() is not stock
    for layer in LAYERS:
        assert len(banks(lab, layer)) == 2
        assert lab.in_hbm(layer) == hot
        got = apply(lab, layer, *inputs[layer])
        assert got.isfinite().all()
        difference = float((got.float() - wanted[layer].float()).norm() / wanted[layer].float().norm())
        assert difference < BOUND, f"layer {layer} differs by {difference:.1e}"


def layer_inputs(lab: marlin.Lab) -> dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    found = {}
    for layer in LAYERS:
        x = marlin.tokens(128, seed=layer)
        weights, ids = marlin.route(x, x @ lab.network.model.layers[layer].gate.T, marlin.TOP_K, True)
        found[layer] = (x, weights, ids)
    return found


def apply(lab: marlin.Lab, layer: int, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return lab.routed(lab.network, layer).forward_modular(x=x, topk_weights=weights, topk_ids=ids)  # type: ignore[no-any-return]


@pytest.mark.parametrize("hot", [0, 64], ids=["all cold", "all hot"])
def test_output_of_one_bank(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hot: int) -> None:
    """Where a bank is empty, the very same bits; the experts did move."""
    lab.load()
    inputs = layer_inputs(lab)
    wanted = {layer: apply(lab, layer, *inputs[layer]) for layer in LAYERS}
    ask(monkeypatch, counts(tmp_path / "counts.json"), hot)
    lab.load()
    assert [lab.in_hbm(layer) for layer in LAYERS] == [hot / 4] * 4, [lab.in_hbm(layer) for layer in LAYERS]
    for layer in LAYERS:
        assert torch.equal(apply(lab, layer, *inputs[layer]), wanted[layer]), f"layer {layer}"


def test_tokens_of_one_bank(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps all of whose tokens choose from one bank: the other one adds exact zeros."""
    lab.load()
    x, weights, _ = layer_inputs(lab)[1]
    rows = {layer: [100] * 8 + [1] * 8 for layer in LAYERS}
    ids = {name: torch.arange(4, dtype=torch.int32).repeat(len(x), 1) + at for name, at in (("hot", 2), ("cold", 9))}
    wanted = {name: apply(lab, 1, x, weights, each) for name, each in ids.items()}
    ask(monkeypatch, counts(tmp_path / "counts.json", rows), 32)
    lab.load()
    assert len(banks(lab, 1)) == 2
    for name, each in ids.items():
        assert torch.equal(apply(lab, 1, x, weights, each), wanted[name]), name


def test_whole_network(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the real MoE runner and its custom op; later layers see inputs that differ a little."""
    lab.load()
    x = marlin.tokens(24)
    wanted = lab.run(x)
    ask(monkeypatch, counts(tmp_path / "counts.json"))
    lab.load()
    assert all(len(banks(lab, layer)) == 2 for layer in LAYERS)
    difference = float((lab.run(x).float() - wanted.float()).norm() / wanted.float().norm())
    assert 0 < difference < 0.03, f"differs by {difference:.1e}"


def test_banks_are_a_partition(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each expert is in one bank, its rows are its own, and nothing of the old tensors is left."""
    lab.load()
    before = {layer: [each.clone() for each in tensors(lab.routed(lab.network, layer))] for layer in LAYERS}
    ask(monkeypatch, counts(tmp_path / "counts.json"))
    lab.load()
    for layer in LAYERS:
        experts = lab.routed(lab.network, layer)
        hot, cold = banks(lab, layer)
        maps = torch.stack([hot.expert_map, cold.expert_map])
        assert maps.dtype == torch.int32
        assert ((maps >= 0).sum(0) == 1).all()
        for bank in (hot, cold):
            chosen = (bank.expert_map >= 0).nonzero()[:, 0]
            assert bank.expert_map[chosen].tolist() == list(range(len(chosen)))
            config = bank.kernel.fused_experts.quant_config
            for was, now in zip(before[layer], (bank.w13, bank.w2, config.w1_scale, config.w2_scale), strict=True):
                assert torch.equal(was[chosen].view(torch.uint8), now.view(torch.uint8))
            stock = experts.quant_method.moe_quant_config
            assert config.gemm1_clamp_limit == stock.gemm1_clamp_limit
            assert stock.w1_scale.numel() == stock.w2_scale.numel() == 0  # nothing keeps the old scales alive
        assert not lab.host.holds(hot.w13)
        assert not lab.host.holds(hot.w2)
        assert lab.host.holds(cold.w13)
        assert lab.host.holds(cold.w2)
        assert [each.numel() for each in tensors(experts)] == [0] * 4
        assert experts.quant_method.moe_kernel is not None


def tensors(experts: Any) -> list[torch.Tensor]:
    names = ("w13_weight", "w2_weight", "w13_weight_scale", "w2_weight_scale")
    return [getattr(experts, name) for name in names]


def test_deferred_sums_are_refused(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that leaves the sum to somebody else, and shared experts, cannot be added up."""
    ask(monkeypatch, counts(tmp_path / "counts.json"))
    lab.load()
    inputs = layer_inputs(lab)[1]
    experts = lab.routed(lab.network, 1)
    x, weights, ids = inputs
    with pytest.raises(RuntimeError, match="is given shared experts"):
        experts.forward_modular(x=x, topk_weights=weights, topk_ids=ids, shared_experts=object())
    split = experts._hotsplit
    later = SimpleNamespace(apply=lambda **_: SimpleNamespace())
    monkeypatch.setattr(split, "banks", [split.banks[0]._replace(kernel=later)])
    with pytest.raises(RuntimeError, match="gave a SimpleNamespace, no sum"):
        apply(lab, 1, *inputs)


# What is said and what is left alone.


def test_lines_of_the_log(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    ask(monkeypatch, counts(tmp_path / "counts.json"))
    lab.load()
    lines = said.about("hotsplit")
    assert lines, "hotsplit says nothing"
    assert lines[:1] == ["hotsplit plan: 4 layers, budget 0.0 GiB (stock HBM experts 0.0 GiB), hot cells 24/64"], lines
    assert lines[1].startswith("hotsplit plan: cell 0.05 MiB, stock HBM by tensor 0.00 GiB, by whole layer 0.00 GiB")
    assert re.fullmatch(r".*, cold bank 0\.00 GiB, train-weighted coverage 9\d\.\d %", lines[1]), lines[1]
    assert lines[2].startswith("hotsplit plan: hot per layer 1:")
    assert lines[3].startswith("hotsplit order: HBM free 100.0 GiB, host avail 200.0 GiB, margin 4.0 GiB, host floor")
    assert lines[4] == "hotsplit done in 0s; HBM free 100.0 GiB; host avail 200.0 GiB"


def test_dry_run(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    """The plan is logged, and every weight stays where it is."""
    lab.load()
    before = [lab.in_hbm(layer) for layer in LAYERS]
    ask(monkeypatch, counts(tmp_path / "counts.json"), DRYRUN="1")
    lab.load()
    assert said.about("hotsplit dry run"), "hotsplit says nothing"
    assert said.about("hotsplit dry run") == ["hotsplit dry run: 4 of 4 layers would be split; nothing was changed"]
    assert said.about("hotsplit plan")[0].endswith("hot cells 24/64")
    assert [lab.in_hbm(layer) for layer in LAYERS] == before
    assert all("_hotsplit" not in lab.routed(lab.network, layer).__dict__ for layer in LAYERS)


def test_a_plan_from_a_file(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that was made before boots as it is; it has its own budget."""
    hot = {"1": [0, 3], "2": [15], "3": list(range(16)), "4": []}
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"hotsplit_plan": 1, "experts": 16, "hot": hot, "meta": {}}))
    monkeypatch.setenv("HOTSPLIT_COUNTS", str(file))
    lab.load()
    found = [lab.in_hbm(layer) for layer in LAYERS]
    assert found == [2, 1, 16, 0], f"experts in HBM by layer: {found}"
    assert [len(banks(lab, layer)) for layer in (1, 2, 4)] == [2, 2, 1]
    monkeypatch.setenv("HOTSPLIT_HOT_GIB", "1")
    with pytest.raises(ValueError, match="is a plan and has its own budget"):
        lab.load()


@pytest.mark.parametrize(("asked", "experts"), [("stock", 32), ("stock-tensors", 37)])
def test_stock_budgets(
    lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, experts: int
) -> None:
    """Whole layers in HBM, as the figures of the recipe count them, or every tensor: half of layer 2 is there too."""
    ask(monkeypatch, counts(tmp_path / "counts.json"), HOT_GIB=asked)
    monkeypatch.setenv("HOTSPLIT_HOT_GIB", asked)
    lab.load()
    found = [lab.in_hbm(layer) for layer in LAYERS]
    assert all(banks(lab, layer) for layer in LAYERS)
    assert sum(found) == experts, f"experts in HBM by layer: {found}"


def test_nothing_asked_for(lab: marlin.Lab, said: Said) -> None:
    """Without a HOTSPLIT_ variable, stock in every bit."""
    lab.load()
    assert [lab.in_hbm(layer) for layer in LAYERS] == [0, pytest.approx(16 / 3), 16, 16]
    assert all("_hotsplit" not in lab.routed(lab.network, layer).__dict__ for layer in LAYERS)
    assert not said.about("hotsplit")


def test_no_part_of_the_compile_key(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables change neither vLLM's key of compiled graphs nor what it says of unknown variables."""
    import vllm.envs as envs

    before = envs.compile_factors()
    ask(monkeypatch, counts(tmp_path / "counts.json"), LIVE_COUNTS=str(tmp_path / "live.json"), DRYRUN="1")
    assert envs.compile_factors() == before
    assert not [name for name in os.environ if name.startswith("VLLM_HOTSPLIT")]


# What is refused.

SWITCHES = {
    "budget": ({"HOT_GIB": "much"}, "HOTSPLIT_HOT_GIB=much: expected a number"),
    "negative budget": ({"HOT_GIB": "-1"}, "HOTSPLIT_HOT_GIB=-1: expected a number from 0"),
    "endless budget": ({"HOT_GIB": "nan"}, "HOTSPLIT_HOT_GIB=nan"),
    "empty": ({"HOT_GIB": ""}, "HOTSPLIT_HOT_GIB is empty"),
    "unknown": ({"HOTGIB": "3"}, "HOTSPLIT_HOTGIB is unknown; did you mean HOTSPLIT_HOT_GIB"),
    "weights": ({"WEIGHTS": "decode:1"}, "HOTSPLIT_WEIGHTS: .*decode:1"),
    "floor": ({"HOST_FLOOR_GIB": "-3"}, "HOTSPLIT_HOST_FLOOR_GIB=-3"),
    "dry run": ({"DRYRUN": "yes"}, "HOTSPLIT_DRYRUN=yes: expected 0 or 1"),
    "alone": ({"LIVE_SECS": "700"}, "HOTSPLIT_LIVE_SECS does nothing without HOTSPLIT_LIVE_COUNTS"),
    "too often": ({"LIVE_COUNTS": "live.json", "LIVE_SECS": "1"}, "HOTSPLIT_LIVE_SECS=1: expected a number from 60"),
    "folder": ({"LIVE_COUNTS": "/nowhere/live.json"}, "the folder /nowhere is not there"),
    "half a token": ({"LIVE_COUNTS": "live.json", "DECODE_MAX": "8.5"}, "HOTSPLIT_DECODE_MAX=8.5: expected whole"),
    "short steps": ({"LIVE_COUNTS": "live.json", "DECODE_MAX": "4"}, "decode steps have up to 8 tokens"),
    "device for the live counts": ({"LIVE_COUNTS": "/dev/null"}, "LIVE_COUNTS=/dev/null is a device, a pipe or"),
    "pipe for the live counts": ({"LIVE_COUNTS": "pipe"}, "HOTSPLIT_LIVE_COUNTS=pipe is a device, a pipe or"),
    "folder for the live counts": ({"LIVE_COUNTS": "folder"}, "HOTSPLIT_LIVE_COUNTS=folder is a folder"),
    "long name": ({"LIVE_COUNTS": "é" * 101}, "a name of more than 200 bytes"),
    "one file for both": ({"LIVE_COUNTS": "counts.json"}, "LIVE_COUNTS=counts.json is HOTSPLIT_COUNTS too"),
    "one file by a link": ({"LIVE_COUNTS": "link"}, "LIVE_COUNTS=link is HOTSPLIT_COUNTS too"),
    "endless weights": ({"WEIGHTS": "decode=1e308,prefill=1e308"}, "HOTSPLIT_WEIGHTS: '1e308' is not a weight from 0"),
    "pipe": ({"COUNTS": "pipe"}, "pipe: is not a regular file"),
    "device": ({"COUNTS": "/dev/zero"}, "/dev/zero: is not a regular file"),
    "no file": ({"COUNTS": "/nowhere.json"}, "HOTSPLIT_COUNTS=/nowhere.json cannot be read: No such file"),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_bad_switches(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Refused before any weight is read, in one error."""
    switches, message = SWITCHES[name]
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    os.mkdir("folder")
    os.symlink("counts.json", "link")
    ask(monkeypatch, counts(tmp_path / "counts.json"), **switches)
    monkeypatch.setattr(marlin, "fill", lambda model: pytest.fail("weights were read"))
    with pytest.raises(ValueError, match=message):
        lab.load()


def test_two_bad_switches_in_one_error(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(monkeypatch, counts(tmp_path / "counts.json"), HOT_GIB="much", DRYRUN="yes")
    with pytest.raises(ValueError, match=r"(?s)HOTSPLIT_HOT_GIB=much.*HOTSPLIT_DRYRUN=yes"):
        lab.load()


BAD_COUNTS = {
    "a layer is missing": ({1: uneven(1), 2: uneven(2), 3: uneven(3)}, "lacks layers .*4"),
    "a layer too many": ({layer: uneven(layer) for layer in range(1, 6)}, "layers that the model has not: .*5"),
    "too few experts": ({layer: [1] * 8 for layer in LAYERS}, "counts 8 experts per layer, the model has 16"),
    "a layer without tokens": ({**{layer: uneven(layer) for layer in LAYERS}, 3: [0] * 16}, "layer 3 has no decode"),
}


@pytest.mark.parametrize("name", BAD_COUNTS)
def test_bad_counts(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    rows, message = BAD_COUNTS[name]
    ask(monkeypatch, counts(tmp_path / "counts.json", rows))
    with pytest.raises(ValueError, match=message):
        lab.load()
    assert lab.network is None


def test_counts_of_another_revision(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = counts(tmp_path / "counts.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "meta": {"model_revision": "aaaa"}}))
    lab.model_config.hf_config._commit_hash = "bbbb"
    ask(monkeypatch, file)
    with pytest.raises(ValueError, match="was counted on revision aaaa, the model is bbbb"):
        lab.load()


OPTIONS: dict[str, tuple[str, Any]] = {
    "parallel_config.tensor_parallel_size": ("--tensor-parallel-size 2", 2),
    "parallel_config.pipeline_parallel_size": ("--pipeline-parallel-size 2", 2),
    "parallel_config.data_parallel_size": ("--data-parallel-size 2", 2),
    "parallel_config.prefill_context_parallel_size": ("--prefill-context-parallel-size 2", 2),
    "parallel_config.decode_context_parallel_size": ("--decode-context-parallel-size 2", 2),
    "parallel_config.enable_expert_parallel": ("--enable-expert-parallel", True),
    "parallel_config.enable_eplb": ("--enable-eplb", True),
    "parallel_config.enable_elastic_ep": ("--enable-elastic-ep", True),
    "parallel_config.enable_dbo": ("--enable-dbo", True),
    "lora_config": ("LoRA", object()),
    "speculative_config": ("--speculative-config", object()),
    "weight_transfer_config": ("--weight-transfer-config", object()),
    "offload_config.offload_backend": ("--offload-backend prefetch", "prefetch"),
    "kernel_config.moe_backend": ("--moe-backend auto", "auto"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_are_refused(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Before any weight is read."""
    message, value = OPTIONS[name]
    ask(monkeypatch, counts(tmp_path / "counts.json"))
    *parts, last = name.split(".")
    setattr(getattr(lab.config, parts[0]) if parts else lab.config, last, value)
    monkeypatch.setattr(marlin, "fill", lambda model: pytest.fail("weights were read"))
    with pytest.raises(ValueError, match=f"hotsplit cannot serve this configuration: .*{message}"):
        lab.load()


def test_sleep_and_environment_are_refused(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(monkeypatch, counts(tmp_path / "counts.json"))
    lab.model_config.enable_sleep_mode = True
    monkeypatch.setenv("VLLM_USE_DEEP_GEMM", "1")
    monkeypatch.setenv("VLLM_WEIGHT_OFFLOADING_DISABLE_UVA", "1")
    with pytest.raises(ValueError, match=r"(?s)--enable-sleep-mode.*DISABLE_UVA.*VLLM_USE_DEEP_GEMM is not 0"):
        lab.load()


def test_loaders_that_are_refused(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader that finishes models in its own way would leave the split out without a word."""
    from vllm.config import LoadConfig
    from vllm.model_executor import model_loader

    class Own(model_loader.DummyModelLoader):
        def load_model(self, *_: Any, **__: Any) -> torch.nn.Module:
            raise AssertionError("this loader was chosen")

    monkeypatch.setitem(model_loader._LOAD_FORMAT_TO_MODEL_LOADER, "dummy", Own)
    model_loader.get_model_loader(LoadConfig(load_format="dummy"))
    ask(monkeypatch, counts(tmp_path / "counts.json"))
    model_loader.get_model_loader(LoadConfig(load_format="auto"))
    with pytest.raises(ValueError, match="hotsplit cannot split what Own loads"):
        model_loader.get_model_loader(LoadConfig(load_format="dummy"))


def test_a_second_loading_is_refused(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As trainers do between updates: the banks would keep the old weights."""
    from vllm.model_executor.model_loader.reload import initialize_layerwise_reload, record_metadata_for_reloading

    ask(monkeypatch, counts(tmp_path / "counts.json"))
    model = lab.load()
    record_metadata_for_reloading(model)
    with pytest.raises(RuntimeError, match="weights cannot be loaded again, 4 layers are split"):
        initialize_layerwise_reload(model)
    experts = lab.routed(model, 1)
    with pytest.raises(RuntimeError, match=r"weights of model\.layers\.1\.mlp\.experts cannot be loaded again"):
        experts.w13_weight.weight_loader(experts.w13_weight, torch.zeros(1), "w1", shard_id="w1", expert_id=0)


def other_backend(experts: Any) -> None:
    experts.quant_method.mxfp4_backend = SimpleNamespace(value="TRITON")


def other_method(experts: Any) -> None:
    experts.quant_method = SimpleNamespace()


def other_kernel(experts: Any) -> None:
    experts.quant_method.moe_kernel.impl = object()


def shared_experts(experts: Any) -> None:
    experts.quant_method.moe_kernel.impl.shared_experts = object()


def a_map(experts: Any) -> None:
    experts.register_buffer("_expert_map", torch.zeros(16, dtype=torch.int32))


def biases(experts: Any) -> None:
    experts.w13_bias = torch.nn.Parameter(torch.zeros(16, 4))


def half_of_them(experts: Any) -> None:
    experts.w2_weight.data = experts.w2_weight.data[:8]


def no_scales(experts: Any) -> None:
    del experts.w2_weight_scale


LAYER_GUARDS: dict[Any, str] = {
    other_backend: "its backend is TRITON, not MARLIN",
    other_method: "are kept by SimpleNamespace",
    other_kernel: "its kernel is not modular",
    shared_experts: "runs shared experts too",
    a_map: "have a map already",
    biases: "have biases",
    half_of_them: r"its w2_weight is \(8, .*, not one matrix for each of 16 experts",
    no_scales: "has no w2_weight_scale",
}


@pytest.mark.parametrize("every", [False, True], ids=["one layer", "every layer"])
@pytest.mark.parametrize("change", LAYER_GUARDS, ids=lambda change: change.__name__)
def test_layers_that_are_refused(
    lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, every: bool
) -> None:
    """Nothing is split if one layer cannot be."""
    from vllm._fixpack import hotsplit

    message = LAYER_GUARDS[change]
    model = lab.load()
    for layer in LAYERS if every else [3]:
        change(lab.routed(model, layer))
    ask(monkeypatch, counts(tmp_path / "counts.json"))
    what = "no eligible MXFP4 MoE layers" if every else "not every MoE layer can be split"
    number = "4 of 4" if every else "1 of 4"
    with pytest.raises(RuntimeError, match=f"hotsplit: {what}: .*{message}.*{number}"):
        hotsplit.after_load(model, lab.model_config)
    assert all("_hotsplit" not in lab.routed(model, layer).__dict__ for layer in LAYERS)


def test_a_model_without_experts(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm._fixpack import hotsplit

    ask(monkeypatch, counts(tmp_path / "counts.json"))
    with pytest.raises(RuntimeError, match="no eligible MXFP4 MoE layers: the model has no routed experts"):
        hotsplit.after_load(torch.nn.Linear(2, 2), lab.model_config)


# The order of the split, and the memory of the machine.


def giant(hot: Sequence[int] | int = 126) -> list[Any]:
    """The 69 MoE layers of MiMo-V2.6-Pro-RL after --cpu-offload-gb 320: to 47 in the host, 48 half, 49 on in HBM."""
    from vllm._fixpack.hotsplit_order import Part

    cell, w2 = 18 << 20, 384 * (6 << 20)
    whole, scales = 384 * cell, 384 * 1_179_648
    parts = []
    for number in range(1, 70):
        chosen = hot if isinstance(hot, int) else hot[number - 1]
        host = whole if number < 48 else whole - w2 if number == 48 else 0
        parts.append(Part(number, chosen * cell, (384 - chosen) * cell, scales, whole - host, host))
    return parts


@pytest.mark.parametrize(
    ("asked", "line", "cold"),
    [
        ("152.8", "budget 152.8 GiB (stock HBM experts 141.8 GiB), hot cells 8692/26496", "312.96"),
        ("", "budget 141.8 GiB (stock HBM experts 141.8 GiB), hot cells 8064/26496", "324.00"),
        ("stock-tensors", "budget 144.0 GiB (stock HBM experts 141.8 GiB), hot cells 8192/26496", "321.75"),
    ],
    ids=["152.8", "unset", "stock-tensors"],
)
def test_plan_line_of_all_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said, asked: str, line: str, cold: str
) -> None:
    """What the installed fix logs of 69 layers of full size (by name and bytes alone); layer 48 is half in HBM."""
    from vllm._fixpack import hotsplit, hotsplit_settings

    rows = {layer: uneven(layer, 384) for layer in range(1, 70)}
    monkeypatch.setenv("HOTSPLIT_COUNTS", str(counts(tmp_path / "counts.json", rows)))
    if asked:
        monkeypatch.setenv("HOTSPLIT_HOT_GIB", asked)

    def stub(layer: int) -> Any:
        sizes = {"w13_weight": 384 * (12 << 20), "w2_weight": 384 * (6 << 20)}
        sizes |= {"w13_weight_scale": 384 * 786_432, "w2_weight_scale": 384 * 393_216}
        out = set(sizes) if layer < 48 else {"w13_weight"} if layer == 48 else set()
        held = {name: SimpleNamespace(nbytes=size, _vllm_is_uva_offloaded=name in out) for name, size in sizes.items()}
        name = f"model.layers.{layer}.mlp.experts.routed_experts"
        return name, SimpleNamespace(global_num_experts=384, top_k=8, layer_name=name, **held)

    settings = hotsplit_settings.read()
    assert settings is not None
    layers = hotsplit._layers([stub(layer) for layer in range(1, 70)])
    hot = hotsplit._plan(settings, layers, "")
    lines = said.about("hotsplit plan")
    assert lines[0] == f"hotsplit plan: 69 layers, {line}"
    assert lines[1].startswith(
        "hotsplit plan: cell 18.00 MiB, stock HBM by tensor 144.00 GiB, by whole layer 141.75 GiB, "
        f"cold bank {cold} GiB, train-weighted coverage "
    )
    assert lines[2] == "hotsplit plan: hot per layer " + " ".join(f"{each}:{len(hot[each])}" for each in hot)


def test_order_of_all_layers() -> None:
    """All 69 are split; the reserve is never touched, host memory never goes below what the dearest layer takes."""
    from vllm._fixpack import hotsplit_order as order

    parts = giant()
    assert order.margin(parts) == 4 * GIB + 126 * (18 << 20) + 384 * 1_179_648  # reserve, hot bank, scales
    found = order.replay(parts, 22 * GIB, 134 * GIB, 24 * GIB)
    assert found.stop is None
    assert sorted(found.order) == list(range(1, 70))
    assert found.order[0] == 1  # a layer in host memory, while there is room
    assert order.RESERVE <= found.lowest_hbm < 22 * GIB
    assert found.lowest_host >= 24 * GIB
    # 144.00 GiB of experts were in HBM, 8,694 cells are now; the host has the rest.
    assert 22 * GIB - found.last_hbm == 69 * 126 * (18 << 20) - 144 * GIB
    assert found.last_host - 134 * GIB == (321.75 * GIB) - 69 * 258 * (18 << 20)


def test_order_with_uneven_layers() -> None:
    """Hot counts from 88 to 141, as the public histogram gives them: still every layer, still the reserve."""
    from vllm._fixpack import hotsplit_order as order

    hot = [88 + (number * 29) % 54 for number in range(69)]
    parts = giant(hot)
    for free in (9, 12, 20, 40):
        found = order.replay(parts, free * GIB, 134 * GIB, 24 * GIB)
        assert found.stop is None, f"{free} GiB: {found.stop}"
        assert found.lowest_hbm >= order.RESERVE


def test_the_mixed_layer() -> None:
    """Layer 48: each of its two tensors counts where it lies."""
    from vllm._fixpack import hotsplit_order as order

    [mixed] = [part for part in giant() if part.layer == 48]
    assert (mixed.host, mixed.hbm) == (int(4.5 * GIB), int(2.25 * GIB))
    found = order.replay([mixed], 30 * GIB, 60 * GIB, 24 * GIB)
    assert 30 * GIB - found.last_hbm == mixed.hot - mixed.hbm
    assert found.last_host - 60 * GIB == mixed.host - mixed.cold


@pytest.mark.parametrize("returned", [0.0, 0.3, 0.55])
def test_a_leak_stops_at_the_host_floor(returned: float) -> None:
    """Freed host memory that does not come back: part of the layers, never below the floor, and the reason."""
    from vllm._fixpack import hotsplit_order as order

    found = order.replay(giant(), 22 * GIB, 134 * GIB, 24 * GIB, returned)
    assert found.stop is not None
    assert found.stop.kind == "host"
    assert 10 < len(found.order) < 69
    assert found.lowest_host >= 24 * GIB
    assert f"host floor hit before layer {found.stop.layer}: host avail" in found.stop.text(24 * GIB)


def test_too_many_hot_experts() -> None:
    from vllm._fixpack import hotsplit_order as order

    found = order.replay(giant(200), 22 * GIB, 134 * GIB, 24 * GIB)
    assert found.stop is not None
    assert found.stop.kind == "hbm"
    assert found.lowest_hbm >= order.RESERVE


REAL = 6.75 * GIB / (marlin.EXPERTS * marlin.CELL)  # so that a layer of the tests counts like one of the giant


def test_split_stops_at_the_host_floor(
    lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    """The real loop with a host that returns 60 %: what remains is served as loaded, and the log names it."""
    lab.load()
    x = marlin.tokens(16)
    wanted = lab.run(x)
    ledger = Ledger(lab, monkeypatch, 34, 0.6, REAL)
    ask(monkeypatch, counts(tmp_path / "counts.json"))
    lab.load()
    [line] = said.about("hotsplit host floor hit")
    assert "before layer 4: host avail" in line
    assert ledger.lowest >= 24 * GIB
    stay = [layer for layer in LAYERS if "_hotsplit" not in lab.routed(lab.network, layer).__dict__]
    assert 0 < len(stay) < 4
    assert line.endswith(f"; {len(stay)} layers stay as loaded: {' '.join(map(str, stay))}")
    assert said.about("hotsplit done in")
    difference = float((lab.run(x).float() - wanted.float()).norm() / wanted.float().norm())
    assert difference < 0.03


def test_a_host_that_returns_nothing(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registered or cached pins: found after the first layer, long before the machine runs out."""
    Ledger(lab, monkeypatch, 100, 0.0, REAL)
    ask(monkeypatch, counts(tmp_path / "counts.json"))
    with pytest.raises(RuntimeError, match=r"changed by -4\.\d\d GiB, expected \+2\.\d\d GiB: freed weights do not"):
        lab.load()


def test_hot_experts_that_do_not_fit(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen before anything is touched."""
    from vllm._fixpack.hotsplit_machine import Machine

    monkeypatch.setattr(Machine, "hbm_free", lambda self: 4 * GIB + 1000)
    ask(monkeypatch, counts(tmp_path / "counts.json"))
    with pytest.raises(RuntimeError, match=r"HBM reserve hit before layer .*lower HOTSPLIT_HOT_GIB"):
        lab.load()


def test_limit_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm._fixpack import hotsplit_machine

    monkeypatch.setattr(hotsplit_machine, "CGROUP", str(tmp_path))
    machine = hotsplit_machine.Machine(torch.device("cpu"))
    assert machine.host_available() > 1 << 20
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.host_available() > 1 << 20
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("4000\n")
    (tmp_path / "memory.stat").write_text("anon 3000\ninactive_file 700\n")
    assert machine.host_available() == 1700


# The live counter.


def counter(lab: marlin.Lab, monkeypatch: pytest.MonkeyPatch, path: Path, **switches: str) -> Any:
    """The counter of a loaded network."""
    monkeypatch.setenv("HOTSPLIT_LIVE_COUNTS", str(path))
    for name, value in switches.items():
        monkeypatch.setenv(f"HOTSPLIT_{name}", value)
    lab.load()
    split = lab.routed(lab.network, 1).__dict__.get("_hotsplit")
    assert split is not None, "nothing counts"
    return split.counter


def spy_choices(lab: marlin.Lab, monkeypatch: pytest.MonkeyPatch) -> dict[int, list[torch.Tensor]]:
    chosen: dict[int, list[torch.Tensor]] = {layer: [] for layer in LAYERS}
    for layer in LAYERS:
        router = lab.network.model.layers[layer].mlp.experts.router
        select = router.select_experts

        def spy(*args: Any, _select: Any = select, _layer: int = layer, **kwargs: Any) -> Any:
            found = _select(*args, **kwargs)
            chosen[_layer].append(found[1].clone())
            return found

        monkeypatch.setattr(router, "select_experts", spy)
    return chosen


def test_counter_is_a_bincount(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    """Decode steps are counted, choice by choice; longer steps, and steps of no request, are not."""
    made = counter(lab, monkeypatch, tmp_path / "live.json")
    chosen = spy_choices(lab, monkeypatch)
    for step, count in enumerate((1, 8, 16)):
        lab.run(marlin.tokens(count, step), torch.arange(count))
    kept = {layer: torch.cat(each) for layer, each in chosen.items()}
    lab.run(marlin.tokens(17, 9), torch.arange(17))  # prefill
    lab.run(marlin.tokens(4, 9))  # warm-up: no slots
    decode = made.document({})["live"]["decode"]
    assert list(decode) == ["1", "2", "3", "4"]
    for layer in LAYERS:
        assert decode[str(layer)] == torch.bincount(kept[layer].flatten(), minlength=marlin.EXPERTS).tolist()
    assert said.about("hotsplit live counter")[0] == "hotsplit live counter: 4 layers"


def test_counter_beside_the_split(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(monkeypatch, counts(tmp_path / "counts.json"))
    made = counter(lab, monkeypatch, tmp_path / "live.json")
    assert all(len(banks(lab, layer)) == 2 for layer in LAYERS)
    chosen = spy_choices(lab, monkeypatch)
    lab.run(marlin.tokens(8), torch.arange(8))
    for row, layer in enumerate(LAYERS):
        assert made.counts[row, :-1].tolist() == torch.bincount(chosen[layer][0].flatten(), minlength=16).tolist()


def test_padding_is_not_counted(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured step of 16 with 3 live tokens: 12 choices per layer, whatever padded tokens choose."""
    made = counter(lab, monkeypatch, tmp_path / "live.json")
    chosen = spy_choices(lab, monkeypatch)
    x = marlin.tokens(16)
    x[3:] = x[3]  # padding is one token again and again
    slots = torch.full((16,), -1)
    slots[:3] = torch.tensor([700, 5, 0])
    lab.run(x, slots)
    for row, layer in enumerate(LAYERS):
        live = torch.bincount(chosen[layer][0][:3].flatten(), minlength=marlin.EXPERTS)
        assert made.counts[row, :-1].tolist() == live.tolist()
    assert int(made.counts.sum()) == 3 * marlin.TOP_K * len(LAYERS)


def test_experts_that_do_not_exist(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative id, which kernels skip, is counted apart and in no snapshot."""
    from vllm.forward_context import set_forward_context

    made = counter(lab, monkeypatch, tmp_path / "live.json")
    with set_forward_context(None, lab.config, num_tokens=2, slot_mapping={"a": torch.tensor([0, 1])}):
        made.count(0, torch.tensor([[-1, 3, 3, 15], [0, -1, -2, 3]], dtype=torch.int32))
    assert made.counts[0].tolist() == [1, 0, 0, 3, *[0] * 11, 1, 3]
    assert made.document({})["live"]["decode"]["1"] == [1, 0, 0, 3, *[0] * 11, 1]


def test_counter_keeps_its_buffers(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph holds the addresses; and nothing in a step waits for the device."""
    made = counter(lab, monkeypatch, tmp_path / "live.json")
    before = made.counts.data_ptr(), made.weights.data_ptr()
    for name in ("item", "tolist", "nonzero", "cpu"):
        monkeypatch.setattr(torch.Tensor, name, lambda self, *_: pytest.fail("a step waits"))
    from vllm.forward_context import set_forward_context

    with set_forward_context(None, lab.config, num_tokens=2, slot_mapping={"a": torch.tensor([0, 1])}):
        for row in range(4):
            made.count(row, torch.zeros(2, marlin.TOP_K, dtype=torch.int32))
    monkeypatch.undo()
    assert (made.counts.data_ptr(), made.weights.data_ptr()) == before
    assert made.counts[:, 0].tolist() == [8, 8, 8, 8]


def test_snapshot(lab: marlin.Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that a re-rank reads, with what identifies the model."""
    path = tmp_path / "live.json"
    lab.model_config.hf_config._commit_hash = "cafe"
    counter(lab, monkeypatch, path)
    lab.run(marlin.tokens(8), torch.arange(8))
    [thread] = [each for each in threading.enumerate() if each.name == "hotsplit-snapshots" and each.path == str(path)]
    assert thread.save()
    document = json.loads(path.read_text())
    assert {len(row) for row in document["live"]["decode"].values()} == {16}
    assert {sum(row) for row in document["live"]["decode"].values()} == {8 * marlin.TOP_K}
    assert document["meta"]["model_revision"] == "cafe"
    assert (document["meta"]["layers"], document["meta"]["experts"], document["meta"]["top_k"]) == (4, 16, 4)
    assert {"since", "at", "note"} <= document["meta"].keys()
    from vllm._fixpack import hotsplit_counts

    assert hotsplit_counts.read(str(path)).layers == LAYERS
    path.unlink()
    path.mkdir()  # nobody can write there now
    assert not thread.save()
    assert thread.is_alive()
    assert [each.name for each in tmp_path.iterdir()] == ["live.json"]
    thread.end()


KILLED = """
import json, sys
from vllm._fixpack.hotsplit_counter import write
number = 0
while True:
    number += 1
    write(sys.argv[1], {"number": number, "rows": [[number] * 384] * 69})
    if number == 1:
        print("there", flush=True)
"""


def test_killed_in_the_middle_of_a_snapshot(tmp_path: Path) -> None:
    """Whenever the process dies, the file is one whole snapshot."""
    import vllm._fixpack.hotsplit_counter  # noqa: F401

    path = tmp_path / "live.json"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    seen = set()
    for _ in range(300):
        document = json.loads(path.read_text())
        assert document["rows"] == [[document["number"]] * 384] * 69
        seen.add(document["number"])
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    document = json.loads(path.read_text())
    assert document["rows"] == [[document["number"]] * 384] * 69
    assert len(seen) > 1
