"""Device "hpu": host memory and the CPU's operators, under tensors that say ``hpu:0`` and refuse to mix with CPU ones.

The device itself is a small compiled library, ``HPU_STUB_DEVICE_SO``: see tests/harness/hpudev and env.py.
Around it: what Gaudi's operators accept and the CPU's do not.
"""
import functools
import os

import torch
from torch.utils import _device

torch.ops.load_library(os.environ["HPU_STUB_DEVICE_SO"])
torch.Tensor.is_hpu = property(lambda self: self.device.type == "hpu")
torch.Tensor.hpu = lambda self, *a, **k: self.to("hpu")
torch.nn.Module.hpu = lambda self, *a, **k: self.to("hpu")

# Pinned memory: no accelerator that torch knows, so nothing to pin for.
torch.Tensor.pin_memory = lambda self, device=None: self
_device._device_constructors()  # cached: `with torch.device(...)` must go on knowing the function wrapped here
_tensor = torch.tensor


@functools.wraps(_tensor)
def _unpinned_tensor(*args, pin_memory=False, **kwargs):
    return _tensor(*args, **kwargs)


torch.tensor = _unpinned_tensor

_Generator = torch.Generator


class _HpuGenerator(_Generator):

    def __new__(cls, device="cpu"):
        return _Generator.__new__(cls, "cpu" if str(device).startswith("hpu") else device)


torch.Generator = _HpuGenerator

# What Gaudi's operators accept and the CPU's do not.


def _wrap(index, size):
    """Gaudi does not check indices and vllm_gaudi pads with -1: take negative ones from the end, clamp the rest."""
    return torch.where(index < 0, index + size, index).clamp(0, max(size - 1, 0))


def _lenient_index(fn):

    @functools.wraps(fn)
    def wrapper(input, dim, index, *args, **kwargs):
        return fn(input, dim, _wrap(index, input.shape[dim]), *args, **kwargs)

    return wrapper


torch.index_select = _lenient_index(torch.index_select)
for _name in ("index_select", "index_copy_", "index_add_", "index_reduce_"):
    setattr(torch.Tensor, _name, _lenient_index(getattr(torch.Tensor, _name)))

_one_hot = torch.nn.functional.one_hot


def _lenient_one_hot(tensor, num_classes=-1):
    """Out-of-range classes give a row of zeros."""
    if num_classes < 0:
        return _one_hot(tensor, num_classes)
    return (tensor.unsqueeze(-1) == torch.arange(num_classes, device=tensor.device)).to(torch.int64)


torch.nn.functional.one_hot = _lenient_one_hot
_embedding = torch.embedding
torch.embedding = lambda weight, indices, *a, **k: _embedding(weight, _wrap(indices, weight.shape[0]), *a, **k)

_matmul = torch.matmul


def _matmul_out(a, b, *, out=None):
    """Gaudi multiplies bfloat16 into a float32 `out` (fp32_softmax); the CPU kernel wants equal dtypes."""
    if out is None or out.dtype == a.dtype:
        return _matmul(a, b) if out is None else _matmul(a, b, out=out)
    return _matmul(a.to(out.dtype), b.to(out.dtype), out=out)


torch.matmul = _matmul_out


def hpu_backend(gm, example_inputs, **options):
    """torch.compile backend "hpu_backend" (found through its entry point): run the traced graph as it is."""
    return gm.forward
