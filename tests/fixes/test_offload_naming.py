"""offload-naming: an entry of --cpu-offload-params that matches nothing is an error, and says what to write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import offload
import pytest
import torch
import uva
from offload import gib

NEW = {"routed_experts.w13_weight", "routed_experts.w2_weight"}
OLD = {"experts.w13_weight", "experts.w2_weight"}


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[uva.Machine]:
    monkeypatch.setenv("VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY", "1")  # whether or not exact-pin is in
    with offload.machine() as found:
        yield found


def finish(patch: pytest.MonkeyPatch, layers: torch.nn.Module | None = None) -> None:
    """The rest of a load, through the loader's own ``load_model``: the model is there, its weights come next."""
    from types import SimpleNamespace

    from vllm.model_executor.model_loader import base_loader

    class Loader(base_loader.BaseModelLoader):
        def download_model(self, model_config: Any) -> None: ...

        def load_weights(self, model: torch.nn.Module, model_config: Any) -> None: ...

        def create_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> torch.nn.Module:
            return layers if layers is not None else torch.nn.Module()

    patch.setattr(base_loader, "process_weights_after_loading", lambda *args: None)
    patch.setattr(base_loader.current_platform, "is_cuda_alike", lambda: False)  # no peak of a real device to log
    patch.setattr(torch.accelerator, "empty_cache", lambda: None)
    patch.setattr(base_loader, "log_online_quantization_time", lambda config: None, raising=False)
    config = SimpleNamespace(
        device_config=SimpleNamespace(device="cuda"), load_config=SimpleNamespace(device=None), quant_config=None
    )
    Loader(config.load_config).load_model(config, SimpleNamespace(dtype=torch.bfloat16))


def refused(layers: int = offload.LAYERS, dense: int = 1, made: Any = offload.expert_layer) -> str:
    """What the offloader says against the model; "" if it takes it."""
    try:
        offload.build(layers, dense, made)
    except ValueError as error:
        return str(error)
    return ""


def at_the_end(patch: pytest.MonkeyPatch, layers: torch.nn.Module | None = None) -> str:
    """What is said against a model that has been constructed; "" if nothing is."""
    try:
        finish(patch, layers)
    except ValueError as error:
        return str(error)
    return ""


def accepts_old(offloader: Any) -> bool:
    """Whether offload-naming-legacy is in as well: then the old spelling is right."""
    entries = getattr(offloader, "_fixpack_entries", None)
    return entries is not None and entries._legacy


def test_documented_spelling(host: uva.Machine) -> None:
    """The example in vLLM's own documentation, refused before the first layer of experts is complete."""
    offloader = offload.offloader(320, OLD)
    made = []

    def layer(prefix: str) -> torch.nn.Module:
        made.append(prefix)
        return offload.expert_layer(prefix)

    told = refused(made=layer)
    if accepts_old(offloader):
        assert not told
        assert gib(offloader.cpu_offload_bytes) == "321.75 GiB"
        return
    assert told, f"{gib(offloader.cpu_offload_bytes)} offloaded, and no word"
    assert told == (
        "--cpu-offload-params: 'experts.w13_weight' matches no parameter, so nothing would be offloaded for it; "
        "nearest: 'mlp.experts.routed_experts.w13_weight'. Write 'routed_experts.w13_weight' instead.\n"
        "--cpu-offload-params: 'experts.w2_weight' matches no parameter, so nothing would be offloaded for it; "
        "nearest: 'mlp.experts.routed_experts.w2_weight'. Write 'routed_experts.w2_weight' instead."
    )
    assert len(made) == 1, "not at the first module"


def test_one_of_two(host: uva.Machine) -> None:
    """A right entry does not excuse a wrong one."""
    offload.offloader(320, {"routed_experts.w13_weight", "mlp.w2_weight"})
    told = refused()
    assert "'mlp.w2_weight'" in told, "no word about mlp.w2_weight"
    assert told.endswith("Write 'routed_experts.w2_weight' instead.")
    assert "w13" not in told


def test_after_a_tower(host: uva.Machine) -> None:
    """A vision tower comes first and has no experts: it is no mistake, the decoder's layer is."""
    offloader = offload.offloader(320, {"mlp.w13_weight"})
    tower = offload.dense_layer()
    offloader.wrap_modules(iter([tower]), prefix="visual")
    told = refused()
    assert told, f"{gib(offloader.cpu_offload_bytes)} offloaded, and no word"
    assert "'mlp.experts.routed_experts.w13_weight'" in told


def test_misspelt(host: uva.Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """No parameter has these segments; the check after construction finds the nearest ones."""
    offload.offloader(320, {"routed_expert.w13_weight"})
    layers = offload.build(layers=3)
    told = at_the_end(monkeypatch, layers)
    assert told, "no word about routed_expert.w13_weight"
    assert re.search(r"nearest: '.*routed_experts\.w13_weight.* Write 'routed_experts\.w13_weight'", told)


def test_no_experts_at_all(host: uva.Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    offload.offloader(320, NEW)
    layers = offload.build(layers=3, dense=3)
    told = at_the_end(monkeypatch, layers)
    assert "'routed_experts.w13_weight' matches no parameter" in told, "no word about routed_experts.w13_weight"


def test_nothing_was_wrapped(host: uva.Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that does not go through the offloader at all."""
    offload.offloader(320, {"routed_experts.w13_weight"})
    assert "was given no parameters at all" in at_the_end(monkeypatch), "no word about anything"


def test_budget_used_up(host: uva.Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that was not reached is not wrong; it is said, not refused."""
    offload.offloader(4, NEW)  # the first weight of the first layer is more
    layers = offload.build(layers=3)
    messages = record(monkeypatch)
    finish(monkeypatch, layers)
    assert any("'routed_experts.w2_weight'" in each for each in messages), "no word about routed_experts.w2_weight"
    assert not any("'routed_experts.w13_weight'" in each for each in messages)


def record(patch: pytest.MonkeyPatch) -> list[str]:
    """What vLLM logs from now on; its loggers do not propagate to pytest's."""
    import logging

    messages: list[str] = []

    class Handler(logging.Handler):
        def emit(self, entry: logging.LogRecord) -> None:
            messages.append(entry.getMessage())

    logger = logging.getLogger("vllm")
    patch.setattr(logger, "handlers", [*logger.handlers, Handler()])
    return messages


# Guards.


def test_right_names(host: uva.Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes and places are as they were, and nothing is said."""
    offloader = offload.offloader(320, NEW)
    messages = record(monkeypatch)
    layers = offload.build()
    finish(monkeypatch, layers)
    assert gib(offloader.cpu_offload_bytes) == "321.75 GiB"
    where = offload.placement(host, layers)
    assert where == {layer: "w13 w2" if layer < 48 else "w13" if layer == 48 else "" for layer in range(1, 70)}
    assert not [each for each in messages if "matche" in each or "old name" in each]


@pytest.mark.parametrize(("entries", "offloaded"), [({"routed_experts"}, "320.06 GiB"), ({"experts"}, "320.06 GiB")])
def test_broad_entries(
    host: uva.Machine, monkeypatch: pytest.MonkeyPatch, entries: set[str], offloaded: str
) -> None:
    """A whole level, with the scales, as before."""
    offloader = offload.offloader(320, entries)
    finish(monkeypatch, offload.build())
    assert gib(offloader.cpu_offload_bytes) == offloaded


def test_no_entries(host: uva.Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without entries everything is offloaded, up to the budget."""
    offloader = offload.offloader(20, set())
    finish(monkeypatch, offload.build(layers=5))
    assert offloader.cpu_offload_bytes >= 20 * offload.GIB


def test_other_offloaders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an offload there is nothing to check."""
    from vllm.model_executor.offloader import base

    with offload.machine():
        base.set_offloader(base.NoopOffloader())
        finish(monkeypatch, offload.build(layers=2))
