"""fused-qkv-check: a fused projection that was never put in place is an error when loading ends, with its name.

``load_model`` of the release's base loader runs, with a model that is made beforehand and a stream that is a list.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import mimo
import pytest
import torch
from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader import base_loader

Stream = list[tuple[str, torch.Tensor]]


class Loader(base_loader.BaseModelLoader):
    """Loads one stream into one model."""

    def __init__(self, model: Any, stream: Stream) -> None:
        super().__init__(LoadConfig())
        self.model, self.stream = model, stream

    def download_model(self, model_config: Any) -> None:
        raise NotImplementedError

    def create_model(self, *_args: Any, **_named: Any) -> Any:
        return self.model

    def load_weights(self, model: Any, model_config: Any) -> None:
        model.load_weights(iter(self.stream))


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, Stream], Any]:
    """``load_model`` up to the conversion for kernels, which this model has none of."""
    monkeypatch.setattr(base_loader, "process_weights_after_loading", lambda *_: None)
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: None)

    def load_model(model: Any, stream: Stream) -> Any:
        config = SimpleNamespace(
            device_config=SimpleNamespace(device=torch.device("cpu")),
            load_config=LoadConfig(),
            quant_config=None,
        )
        return Loader(model, stream).load_model(config, SimpleNamespace(dtype=torch.float32))

    return load_model


def without(checkpoint: mimo.Checkpoint, *names: str) -> Stream:
    return [(name, tensor) for name, tensor in checkpoint.in_order() if not name.endswith(names)]


@pytest.mark.parametrize("half", ["weight", "weight_scale_inv"])
def test_a_half_is_missing(monkeypatch: pytest.MonkeyPatch, load: Callable[..., Any], half: str) -> None:
    checkpoint = mimo.Checkpoint(12)
    stream = without(checkpoint, f"layers.2.self_attn.qkv_proj.{half}", f"layers.10.self_attn.qkv_proj.{half}")
    with pytest.raises(ValueError, match=r"^2 fused .*: model\.layers\.2\.self_attn\.qkv_proj: ") as caught:
        load(mimo.build(monkeypatch, 12), stream)
    told = str(caught.value)
    assert told.index("model.layers.2.") < told.index("model.layers.10.")
    assert f"without its {half}" in told or "is zero" in told  # what waits is known only where it is kept
    assert "runai_streamer" in told


def test_both_halves_are_missing(monkeypatch: pytest.MonkeyPatch, load: Callable[..., Any]) -> None:
    stream = without(mimo.Checkpoint(3), "layers.1.self_attn.qkv_proj.weight", "1.self_attn.qkv_proj.weight_scale_inv")
    with pytest.raises(ValueError, match=r"^1 fused qkv_proj .* model\.layers\.1\.self_attn\.qkv_proj: is zero\. With"):
        load(mimo.build(monkeypatch, 3), stream)


def test_no_decoder_weights_at_all(monkeypatch: pytest.MonkeyPatch, load: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"^2 fused qkv_proj not loaded"):
        load(mimo.build(monkeypatch, 2), mimo.Checkpoint(2).lm_head())


def test_what_waits_is_dropped(monkeypatch: pytest.MonkeyPatch, load: Callable[..., Any]) -> None:
    """After the error, a later load cannot pair a half of this one with one of its own."""
    model, first, second = mimo.build(monkeypatch, 1), mimo.Checkpoint(1, seed=1), mimo.Checkpoint(1, seed=2)
    with pytest.raises(ValueError, match=r"model\.layers\.0\.self_attn\.qkv_proj"):
        load(model, without(first, "weight_scale_inv"))
    assert not model.model.__dict__.get("_pending_fp8_qkv_proj")
    load(model, list(second.in_order()))
    assert mimo.error(model, second, 0) < 0.05


def test_module(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm._fixpack.fused_qkv import check

    model = mimo.build(monkeypatch, 3)
    for layer in (0, 2):
        model.model.layers[layer].self_attn.qkv_proj.weight.data.view(torch.uint8)[0, 0] = 1
    pending = model.model.__dict__["_pending_fp8_qkv_proj"] = {
        "layers.1.self_attn.qkv_proj": {"weight": torch.ones(1)},
        "layers.0.self_attn.qkv_proj": {"weight_scale_inv": torch.ones(1)},
    }
    with pytest.raises(ValueError, match=r"^2 fused") as caught:
        check(model)
    assert str(caught.value).split(": ", 1)[1].split(". With")[0] == (
        "model.layers.0.self_attn.qkv_proj: has come without its weight; "
        "model.layers.1.self_attn.qkv_proj: has come without its weight_scale_inv"
    )
    assert pending == {}
    bare = mimo.build(monkeypatch, 1).model  # the decoder itself, and a weight on its side
    bare.layers[0].self_attn.qkv_proj.weight = torch.nn.Parameter(torch.zeros(4, 2).T, requires_grad=False)
    with pytest.raises(ValueError, match=r": layers\.0\.self_attn\.qkv_proj: is zero"):
        check(bare)
    bare.layers[0].self_attn.qkv_proj.weight.data[1, 3] = -1e-9
    check(bare)
    check(torch.nn.Linear(2, 2))


# Guards.


def test_whole(monkeypatch: pytest.MonkeyPatch, load: Callable[..., Any]) -> None:
    checkpoint = mimo.Checkpoint(3)
    model = load(mimo.build(monkeypatch, 3), list(checkpoint.in_order()))
    assert max(mimo.error(model, checkpoint, layer) for layer in checkpoint.layers) < 0.05
    assert not model.training


def test_another_model(load: Callable[..., Any]) -> None:
    """A projection of that name in another model may be zero."""

    class Other(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv_proj = torch.nn.Linear(2, 2)
            self.qkv_proj.weight.data.zero_()

        def load_weights(self, weights: Any) -> None:
            assert list(weights) == []

    load(Other(), [])
