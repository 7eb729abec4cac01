"""layer-truncation: a model with fewer layers than the checkpoint takes what is its own, and leaves the rest."""

from __future__ import annotations

from typing import Any

import mimo
import pytest

FP8 = 0.05  # the fused weights are quantised again when they are put in order


def right(model: Any, checkpoint: mimo.Checkpoint, layers: int) -> None:
    for layer in range(layers):
        assert mimo.error(model, checkpoint, layer) < FP8, f"layer {layer} is not the checkpoint's"
        assert model.model.layers[layer].input_layernorm.weight.equal(checkpoint.norms[layer])
    assert model.lm_head.weight.equal(checkpoint.head)


def test_fewer_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    model, checkpoint = mimo.build(monkeypatch, 2), mimo.Checkpoint(4)
    loaded = model.load_weights(checkpoint.in_order())
    right(model, checkpoint, 2)
    assert not [name for name in loaded if ".layers.2." in name or ".layers.3." in name]


def test_one_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    model, checkpoint = mimo.build(monkeypatch, 1), mimo.Checkpoint(16)
    model.load_weights(checkpoint.in_order())
    right(model, checkpoint, 1)


def test_weights_before_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair of a layer that is cut off may be far apart; neither half is kept for later."""
    model, checkpoint = mimo.build(monkeypatch, 2), mimo.Checkpoint(4)
    stream = [weight for layer in checkpoint.layers for weight in checkpoint.weight(layer)]
    stream += [scale for layer in checkpoint.layers for scale in checkpoint.scale(layer)]
    stream += [norm for layer in checkpoint.layers for norm in checkpoint.norm(layer)]
    model.load_weights(iter([*stream, *checkpoint.lm_head()]))
    right(model, checkpoint, 2)


def test_a_layer_that_the_model_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A projection of another name must not be left out without a word: it would stay zero."""
    model, checkpoint = mimo.build(monkeypatch, 2), mimo.Checkpoint(2)
    model.model.layers[1].self_attn.fused = model.model.layers[1].self_attn.qkv_proj
    del model.model.layers[1].self_attn.qkv_proj
    with pytest.raises(ValueError, match=r"holds layers\.1\.self_attn\.qkv_proj\.weight.* has 2 layers"):
        model.load_weights(checkpoint.in_order())


# Guards.


def test_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    model, checkpoint = mimo.build(monkeypatch, 3), mimo.Checkpoint(3)
    loaded = model.load_weights(checkpoint.in_order())
    right(model, checkpoint, 3)
    assert len(loaded) == 3 * 3 + 1


def test_a_layer_of_another_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """With pipeline parallelism a layer can be elsewhere; that is asked first."""
    from vllm.model_executor.models.utils import PPMissingLayer

    model, checkpoint = mimo.build(monkeypatch, 2), mimo.Checkpoint(2)
    model.model.layers[0] = PPMissingLayer()
    loaded = model.load_weights(checkpoint.in_order())
    assert mimo.error(model, checkpoint, 1) < FP8
    assert not [name for name in loaded if ".layers.0." in name]
