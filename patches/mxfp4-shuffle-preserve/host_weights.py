"""Keep an offloaded weight in the host memory that it has when its kernel wants another layout.

``--cpu-offload-gb`` with UVA makes a parameter a view of host memory and marks it ``_vllm_is_uva_offloaded``.  After
loading, a quantization method hands in the same bytes in another order, or in another type, as a new tensor in HBM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

MARK = "_vllm_is_uva_offloaded"


def _same_start(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both begin at the same byte of the same storage.  (Addresses would not do: fake tensors have none.)"""
    starts = [tensor.storage_offset() * tensor.element_size() for tensor in (one, other)]
    return shares(one, other) and starts[0] == starts[1]


def shares(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both lie in the same storage."""
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)


def take(old: torch.Tensor | None, new: torch.Tensor, attributes: Mapping[str, Any]) -> bool:
    """Copy ``new`` into the host memory of ``old`` and give ``old`` its type and shape; say whether that was done.

    ``old`` is the registered parameter, and stays it, with its address, mark, class and loader; ``attributes`` of the
    new tensor are set on it, as ``replace_parameter`` does.  Not done, and nothing changed, if ``old`` is not
    offloaded, is the source of an online requantization, or if the new tensor does not fit byte for byte: another size
    or device, not contiguous, or a part of the same memory at another place.
    """
    if old is None or not getattr(old, MARK, False) or getattr(old, "requantization_source", False):
        return False
    held, data = old.data, new.data
    fits = held.device == data.device and held.nbytes == data.nbytes > 0
    if not fits or not held.is_contiguous() or not data.is_contiguous():
        return False
    place = held.view(-1).view(torch.uint8)
    if not _same_start(held, data):
        if shares(held, data):
            return False
        place.copy_(data.view(-1).view(torch.uint8))
    old.data = place.view(data.dtype).view(data.shape)
    for name, value in attributes.items():
        setattr(old, name, value)
    return True


def moves(old: torch.Tensor, new: torch.Tensor) -> None:
    """``old`` is about to hold ``new`` instead: if that is elsewhere, take its mark away, which would be untrue.

    The loading context then sees that an offloaded parameter is in HBM, and offloads it again.
    """
    if getattr(old, MARK, False) and not shares(old.data, new):
        delattr(old, MARK)
