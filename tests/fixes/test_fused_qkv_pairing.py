"""fused-qkv-pairing: weight and scale of a fused projection find each other in whatever order the stream has them.

The model class, its loading code and the loader that groups the stream by name are the release's own.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import mimo
import pytest

FP8 = 0.05  # the fused weights are quantised again when they are put in order


def load(monkeypatch: pytest.MonkeyPatch, stream: Sequence[tuple[str, Any]], layers: int) -> Any:
    model = mimo.build(monkeypatch, layers)
    model.load_weights(iter(stream))
    return model


def check(model: Any, wanted: Any, checkpoint: mimo.Checkpoint) -> None:
    """The very weights that the canonical order gives, which are the checkpoint's; and nothing waits."""
    zero = [layer for layer in checkpoint.layers if not mimo.projection(model, layer).any()]
    assert not zero, f"layers {zero} are zero"
    for layer in checkpoint.layers:
        assert mimo.projection(model, layer).equal(mimo.projection(wanted, layer)), f"layer {layer} differs"
        assert mimo.error(model, checkpoint, layer) < FP8
        assert model.model.layers[layer].input_layernorm.weight.equal(checkpoint.norms[layer])
    assert model.lm_head.weight.equal(checkpoint.head)
    assert not model.model.__dict__.get("_pending_fp8_qkv_proj")


def test_a_stranger_between_the_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """lm_head between the weight and the scale of layer 1 ends the run of names below "model."."""
    checkpoint = mimo.Checkpoint(3)
    stream = list(checkpoint.in_order())
    at = [name for name, _ in stream].index("model.layers.1.self_attn.qkv_proj.weight_scale_inv")
    model = load(monkeypatch, [*stream[:at], stream[-1], *stream[at:-1]], 3)
    check(model, load(monkeypatch, stream, 3), checkpoint)


def test_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """The orders that a loader may have, each with a stranger in it."""
    checkpoint = mimo.Checkpoint(3)
    wanted = load(monkeypatch, list(checkpoint.in_order()), 3)
    layers, head = list(checkpoint.layers), checkpoint.lm_head()
    weights = [checkpoint.weight(layer) for layer in layers]
    scales = [checkpoint.scale(layer) for layer in layers]
    norms = [checkpoint.norm(layer) for layer in layers]
    orders = {
        "scale first": [part for s, w in zip(scales, weights, strict=True) for part in (s, head, w)],
        "weight first": [part for w, s in zip(weights, scales, strict=True) for part in (w, head, s)],
        "all weights, then all scales": [*weights, head, *scales],
        "all scales, then all weights": [*scales, head, *weights],
        "crosswise": [*weights, head, *reversed(scales)],
    }
    for parts in orders.values():
        stream = [pair for part in [*parts, *norms] for pair in part]
        check(load(monkeypatch, stream, 3), wanted, checkpoint)


def test_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every order of one layer's stream, and 40 of three layers'."""
    small = mimo.Checkpoint(1)
    stream = list(small.in_order())
    wanted = load(monkeypatch, stream, 1)
    for order in itertools.permutations(stream):
        check(load(monkeypatch, order, 1), wanted, small)
    large = mimo.Checkpoint(3)
    stream = list(large.in_order())
    wanted = load(monkeypatch, stream, 3)
    chance = random.Random(5)
    for _ in range(40):
        check(load(monkeypatch, chance.sample(stream, len(stream)), 3), wanted, large)


def test_two_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer sends one layer's halves in two calls: the new pair counts, and nothing of the old one."""
    old, new = mimo.Checkpoint(1, seed=1), mimo.Checkpoint(1, seed=2)
    model = load(monkeypatch, list(old.in_order()), 1)
    model.load_weights(iter(new.scale(0)))
    model.load_weights(iter(new.weight(0)))
    wanted = load(monkeypatch, list(new.in_order()), 1)
    changed = mimo.projection(model, 0).equal(mimo.projection(wanted, 0))
    assert changed, "layers [0] are not the new ones"


# Guards.


def test_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = mimo.Checkpoint(3)
    stream = list(checkpoint.in_order())
    check(load(monkeypatch, stream, 3), load(monkeypatch, stream, 3), checkpoint)


def test_halves_together_scale_first(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = mimo.Checkpoint(2)
    parts = [part for layer in (0, 1) for part in (checkpoint.scale(layer), checkpoint.weight(layer))]
    parts += [checkpoint.norm(0), checkpoint.norm(1), checkpoint.lm_head()]
    stream = [pair for part in parts for pair in part]
    check(load(monkeypatch, stream, 2), load(monkeypatch, list(checkpoint.in_order()), 2), checkpoint)
