"""After loading: is any fused qkv_proj of MiMo-V2 left at zero, or any half of one left over?

A fused projection comes as two tensors, and a quantized model is not asked whether all of its weights were loaded.  One
that was never put in place is zero, and the model then answers in fluent nonsense.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import torch
from torch import nn

_MODELS = "vllm.model_executor.models.mimo_v2"
_PENDING = "_pending_fp8_qkv_proj"  # upstream's name, from v0.32.0 on
_HALVES = {"weight", "weight_scale_inv"}


def check(model: nn.Module) -> None:
    """Nothing to do for a model without a MiMoV2Model in it.

    What waits for its other half is dropped, so that a later load does not pair it with new weights.

    :raises ValueError: if a half of a projection has no other half, or if a projection is zero; with all their names.
    """
    kind = getattr(sys.modules.get(_MODELS), "MiMoV2Model", None)
    if kind is None:
        return
    wrong: list[str] = []
    for at, part in model.named_modules():
        if not isinstance(part, kind):
            continue
        pending = part.__dict__.get(_PENDING) or {}
        for name, halves in sorted(pending.items(), key=lambda item: _by_number(item[0])):
            missing = ", ".join(sorted(_HALVES - set(halves))) or "nothing"
            wrong.append(f"{at}.{name}: has come without its {missing}".lstrip("."))
        waiting = set(pending)
        pending.clear()
        wrong += [f"{at}.{name}: is zero".lstrip(".") for name in _zeros(part) if name not in waiting]
    if wrong:
        raise ValueError(
            f"{len(wrong)} fused qkv_proj not loaded: {'; '.join(wrong)}. With such layers the model answers in fluent "
            "nonsense. Is a file of the checkpoint missing or cut off? With --load-format runai_streamer or another "
            "format that changes the order of the weights, load without it."
        )


def _zeros(model: nn.Module) -> Iterator[str]:
    """The names of the projections whose bytes are all zero, as the constructor left them."""
    for name, weight in model.named_parameters():
        if name.endswith(".qkv_proj.weight") and weight.numel() and not weight.is_meta:
            data = weight.data
            held = data.view(torch.uint8) if data.is_contiguous() else data.contiguous().view(torch.uint8)
            if not bool(held.any()):
                yield name.removesuffix(".weight")


def _by_number(name: str) -> list[tuple[int, str]]:
    """For layers in the order of their numbers."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"\.", name)]
