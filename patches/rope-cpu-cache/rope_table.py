"""Build rotary-embedding tables on the host.

A model is constructed with the accelerator as torch's default device, so that the angles' sine and cosine would be
taken there, in 32 bits.  The angle of the first channel is the position itself: at a few hundred thousand radians a
32-bit angle is off by up to 0.008, and the sine and cosine of some accelerators fail altogether.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def build_table(compute: Callable[..., torch.Tensor], *args: Any) -> torch.Tensor:
    """The table that ``compute(*args)`` makes on the host, on the device where it would have been made.

    64-bit numbers are narrowed to 32 bits before they are moved: some devices have none.  The default device, and not
    the arguments, decides where ``compute`` works, because it may call further functions that make tensors.
    """
    device = torch.empty(0).device
    with torch.device("cpu"):
        table = compute(*args)
    if table.dtype == torch.float64:
        table = table.to(torch.float32)
    return table.to(device)
