"""exact-pin: offloaded weights take their own bytes of pinned host memory, and give them back."""

from __future__ import annotations

import offload
import pytest
import torch
import uva
from offload import GIB, W2, W13, gib

ENTRIES = {"routed_experts.w13_weight", "routed_experts.w2_weight"}
OFF = "VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY"
OFFLOADED = 47 * (W13 + W2) + W13  # of a budget of 320 GiB: it ends within a layer


def exact(host: uva.Machine, wanted: int) -> None:
    taken = host.reserved
    assert taken == wanted, f"{gib(taken)} of host memory for {gib(wanted)}"


def test_bytes() -> None:
    with offload.machine() as host:
        offloader = offload.offloader(320, ENTRIES)
        layers = offload.build()
        assert offloader.cpu_offload_bytes == OFFLOADED
        exact(host, OFFLOADED)
        assert host.pin_calls == 0
        where = offload.placement(host, layers)
        assert where == {layer: "w13 w2" if layer < 48 else "w13" if layer == 48 else "" for layer in range(1, 70)}


def test_a_smaller_budget() -> None:
    with offload.machine() as host:
        offloader = offload.offloader(301, ENTRIES)
        layers = offload.build()
        exact(host, offloader.cpu_offload_bytes)
        assert [layer for layer, names in offload.placement(host, layers).items() if names][-1] == 45


def test_peak() -> None:
    """On the way there, one weight is in host memory twice, and no more."""
    with offload.machine() as host:
        offload.offloader(320, ENTRIES)
        offload.build()
        assert host.peak_host <= OFFLOADED + W13, gib(host.peak_host)


def test_freed() -> None:
    with offload.machine() as host:
        offload.offloader(320, ENTRIES)
        layers = offload.build()
        assert host.reserved >= OFFLOADED
        del layers
        offload.forget()
        assert host.reserved == 0, f"{gib(host.reserved)} stay"


def replace(layer: torch.nn.Module) -> None:
    """What a kernel that wants another layout does: new parameters of as many bytes."""
    experts = layer.mlp.experts.routed_experts
    for name in ("w13_weight", "w2_weight"):
        old = getattr(experts, name)
        data = torch.empty(old.shape[0], old.shape[1] // 4, old.shape[2], dtype=torch.int32)
        delattr(experts, name)
        experts.register_parameter(name, torch.nn.Parameter(data, requires_grad=False))


def test_replaced_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """New parameters are offloaded again, in as many bytes, and the old ones' memory is given back."""
    from vllm.model_executor.model_loader.utils import device_loading_context

    with offload.machine() as host:
        monkeypatch.setenv(OFF, "1")  # so that only what comes now can be pinned
        offload.offloader(6.75, ENTRIES)
        layer = offload.build(layers=2)[1]
        exact(host, W13 + W2)
        monkeypatch.delenv(OFF)
        with device_loading_context(layer, torch.device("cuda")):
            replace(layer)
        exact(host, W13 + W2)
        for name in ("w13_weight", "w2_weight"):
            weight = getattr(layer.mlp.experts.routed_experts, name)
            assert host.on_host(weight)
            assert weight._vllm_is_uva_offloaded


# Guards.


def test_pinning_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch that has the same effect still has it, and the fix nothing to add."""
    monkeypatch.setenv(OFF, "1")
    with offload.machine() as host:
        offload.offloader(320, ENTRIES)
        offload.build()
        exact(host, OFFLOADED)
        assert host.pin_calls == 0


def test_without_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are copied to the device for each forward are pinned as before: that is what makes copies fast."""
    monkeypatch.setenv("VLLM_WEIGHT_OFFLOADING_DISABLE_UVA", "1")
    with offload.machine() as host:
        offload.offloader(13.5, ENTRIES)
        offload.build(layers=4)
        assert host.pin_calls == 4
        assert host.pinned == 2 * (8 + 4) * GIB


def test_a_transposed_weight() -> None:
    """Kernels that want columns get them: offloaded at first, and again after it was replaced."""
    from vllm.model_executor.model_loader.utils import device_loading_context

    def transposed() -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.empty(3072, 4096, dtype=torch.uint8).t(), requires_grad=False)

    with offload.machine() as host:
        layer = torch.nn.Module()
        layer.weight = transposed()
        offload.offloader(1, set()).wrap_modules(iter([layer]))
        assert host.on_host(layer.weight)
        assert layer.weight.stride() == (1, 4096)
        with device_loading_context(layer, torch.device("cuda")):
            layer.weight = transposed()
        assert host.on_host(layer.weight)
        assert layer.weight.stride() == (1, 4096)


def test_another_device() -> None:
    """An XPU's view wants a pinned tensor."""
    with offload.machine("xpu") as host:
        offload.offloader(13.5, ENTRIES)
        offload.build(layers=4)
        assert host.pin_calls == 4
