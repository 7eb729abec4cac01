"""Pin offloaded weights without rounding: let the view allocate, which takes exactly the bytes and gives them back.

PyTorch's caching host allocator, behind ``pin_memory()``, rounds each block up to a power of two and keeps freed ones:
experts of 4.5 GiB take 8.  On CUDA and ROCm the view of a tensor that is not pinned allocates pinned memory
itself, with cudaHostAlloc and the tensor's own size, copies, and frees it with cudaFreeHost when the view dies.
"""

from __future__ import annotations

import torch


def view_pins(weight: torch.Tensor, uva: bool) -> bool:
    """Whether the view that will be made of a weight allocates pinned memory itself, so that pinning first is wrong.

    A weight that is not contiguous is pinned first, as before: the view's own copy would be contiguous, and some
    kernels want the strides that the weight has.

    :param uva: whether a view will be made at all.
    """
    from vllm.platforms import current_platform  # as upstream does: at the call, when the platform is known

    return uva and weight.is_contiguous() and current_platform.is_cuda_alike()


def to_host(weight: torch.Tensor, pin: bool) -> torch.Tensor:
    """A copy of a device tensor in host memory, of which a view is about to be made.

    :param pin: whether the user lets weights be pinned.
    """
    pinned = pin and not view_pins(weight, True)
    return torch.empty_like(weight, device="cpu", pin_memory=pinned).copy_(weight)
