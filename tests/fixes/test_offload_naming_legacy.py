"""offload-naming-legacy: the old names of expert weights offload what the new ones do, and say so once."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import offload
import pytest
import uva
from offload import gib


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[uva.Machine]:
    monkeypatch.setenv("VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY", "1")
    with offload.machine() as found:
        yield found


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What vLLM logs; its loggers do not propagate to pytest's."""
    found: list[str] = []

    class Handler(logging.Handler):
        def emit(self, entry: logging.LogRecord) -> None:
            found.append(entry.getMessage())

    logger = logging.getLogger("vllm")
    monkeypatch.setattr(logger, "handlers", [*logger.handlers, Handler()])
    return found


def test_old_names(host: uva.Machine, messages: list[str]) -> None:
    offloader = offload.offloader(320, {"experts.w13_weight", "experts.w2_weight"})
    layers = offload.build()
    assert gib(offloader.cpu_offload_bytes) == "321.75 GiB", f"{gib(offloader.cpu_offload_bytes)} offloaded"
    where = offload.placement(host, layers)
    assert where == {layer: "w13 w2" if layer < 48 else "w13" if layer == 48 else "" for layer in range(1, 70)}
    assert [each for each in messages if "old name" in each] == [
        "--cpu-offload-params: 'experts.w13_weight' is an old name; it is taken for 'routed_experts.w13_weight'.",
        "--cpu-offload-params: 'experts.w2_weight' is an old name; it is taken for 'routed_experts.w2_weight'.",
    ]


def test_old_and_new(host: uva.Machine, messages: list[str]) -> None:
    offloader = offload.offloader(320, {"routed_experts.w13_weight", "mlp.experts.w2_weight"})
    offload.build(layers=48)
    assert gib(offloader.cpu_offload_bytes) == "317.25 GiB", f"{gib(offloader.cpu_offload_bytes)} offloaded"
    assert sum("old name" in each for each in messages) == 1


# Guards.


def test_new_names(host: uva.Machine, messages: list[str]) -> None:
    offloader = offload.offloader(320, {"routed_experts.w13_weight", "routed_experts.w2_weight"})
    offload.build()
    assert gib(offloader.cpu_offload_bytes) == "321.75 GiB"
    assert not [each for each in messages if "old name" in each]


def test_scales_are_not_weights(host: uva.Machine) -> None:
    """Whole segments, old or new: the scales stay."""
    offload.offloader(320, {"routed_experts.w13_weight"})
    layers = offload.build(layers=2)
    scale = layers[1].mlp.experts.routed_experts.w13_weight_scale
    assert not host.on_host(scale)
