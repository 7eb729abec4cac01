"""A machine with a GPU, for programs that only move memory: tensors have a place and a size, but no bytes.

``with machine() as found:`` runs real code on torch's fake tensors, so that 320 GiB of weights cost nothing, and books
every storage that the code makes:

======== ===========================================================================================================
hbm      a tensor on "cuda"
pageable a tensor on "cpu"
pinned   what torch's caching host allocator holds: each request is rounded up to a power of two, and a block that
         its tensor gives back is kept for the next request, not returned to the system
exact    what vLLM's ``get_cuda_view_from_cpu_tensor`` allocates for a tensor that is not pinned: its own size, and
         given back with the view
======== ===========================================================================================================

The view of a tensor in host memory is on "cuda" and takes no HBM.  Modelled on torch 2.13's CachingHostAllocator and
vLLM's csrc/libtorch_stable/cuda_view.cu (0.30.0 to 0.33.0), not on a driver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

GIB = 1 << 30
VIEW = "get_cuda_view_from_cpu_tensor"
OPERATORS = torch.library.Library("_C", "FRAGMENT")
if not hasattr(torch.ops._C, VIEW):
    OPERATORS.define(f"{VIEW}(Tensor cpu_tensor) -> Tensor")
aten = torch.ops.aten


def key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


class Booked:
    """One storage: where it lies, what it takes there, and what it keeps alive."""

    def __init__(self, tensor: torch.Tensor, place: str, taken: int, base: torch.Tensor | None = None) -> None:
        self.alive = StorageWeakRef(tensor.untyped_storage())
        self.place, self.taken, self.base = place, taken, base


class Machine(TorchDispatchMode):
    """The books of one machine, all figures in bytes.  ``machine()`` makes and enters it."""

    def __init__(self) -> None:
        super().__init__()
        self._books: dict[int, Booked] = {}
        self._kept: Counter[int] = Counter()  # pinned blocks that no tensor uses, by size
        self.peak_host = self.peak_hbm = 0
        self.pin_calls = 0
        self.written = 0  # bytes copied into views of host memory

    def _sum(self, place: str) -> int:
        self._sweep()
        return sum(booked.taken for booked in self._books.values() if booked.place == place)

    @property
    def hbm(self) -> int:
        return self._sum("hbm")

    @property
    def pageable(self) -> int:
        return self._sum("pageable")

    @property
    def exact(self) -> int:
        return self._sum("exact")

    @property
    def pinned(self) -> int:
        """With the blocks that the allocator keeps."""
        return self._sum("pinned") + sum(size * count for size, count in self._kept.items())

    @property
    def host(self) -> int:
        return self.pageable + self.pinned + self.exact

    def on_host(self, tensor: torch.Tensor) -> bool:
        """Whether the bytes of a tensor, whatever its device, lie in host memory."""
        return self._books[key(tensor)].place != "hbm"

    def _sweep(self) -> None:
        """Forget the storages that died; a view's death may be its base's."""
        while dead := [at for at, booked in self._books.items() if booked.alive.expired()]:
            for at in dead:
                booked = self._books.pop(at)
                if booked.place == "pinned":
                    self._kept[booked.taken] += 1

    def _book(self, tensor: torch.Tensor, place: str, base: torch.Tensor | None = None) -> None:
        self._sweep()
        taken = tensor.untyped_storage().nbytes() if place != "alias" else 0
        if place == "pinned":
            taken = 1 << max(taken - 1, 0).bit_length()
            if self._kept[taken]:
                self._kept[taken] -= 1
        self._books[key(tensor)] = Booked(tensor, place, taken, base)
        self.peak_host = max(self.peak_host, self.host)
        self.peak_hbm = max(self.peak_hbm, self.hbm)

    def _known(self, tensor: torch.Tensor) -> bool:
        booked = self._books.get(key(tensor))
        return booked is not None and not booked.alive.expired()

    def _view(self, tensor: torch.Tensor) -> torch.Tensor:
        view = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
        if self._books[key(tensor)].place == "pinned":
            self._book(view, "alias", tensor)
        else:
            self._book(view, "exact")
        return view

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is aten.is_pinned.default:
            return self._books[key(args[0])].place == "pinned"
        if func is getattr(torch.ops._C, VIEW).default:
            return self._view(args[0])
        pins = kwargs.pop("pin_memory", False) or func is aten._pin_memory.default
        if func is aten._pin_memory.default:
            func, args = aten.clone.default, args[:1]
        if func is aten.copy_.default and self._known(args[0]) and args[0].device.type == "cuda":
            self.written += args[0].nbytes if self.on_host(args[0]) else 0
        result = func(*args, **kwargs)
        self.pin_calls += bool(pins)
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and not self._known(tensor):
                self._book(tensor, "pinned" if pins else "hbm" if tensor.device.type == "cuda" else "pageable")
        return result


class _Bindings(TorchFunctionMode):
    """Methods whose Python bindings ask for a real CUDA before a fake tensor is asked: say the same to the operator."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.copy_:
            return aten.copy_.default(args[0], args[1])
        if func is torch.Tensor.__setitem__ and isinstance(args[2], torch.Tensor):
            aten.copy_.default(args[0][args[1]], args[2])
            return None
        if func is torch.Tensor.__getitem__:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(each, torch.Tensor) for each in index):
                assert all(isinstance(each, torch.Tensor) or each == slice(None) for each in index), index
                return aten.index.Tensor(args[0], [None if isinstance(each, slice) else each for each in index])
        if func is torch.Tensor.to:
            device = kwargs.get(
                "device", next((each for each in args[1:] if isinstance(each, str | torch.device)), None)
            )
            if device is not None and torch.device(device).type == "cuda":
                dtype = kwargs.get("dtype", next((each for each in args[1:] if isinstance(each, torch.dtype)), None))
                if args[0].device.type == "cuda" and dtype in (None, args[0].dtype):
                    return args[0]
                return aten._to_copy.default(args[0], dtype=dtype, device=torch.device(device))
        return func(*args, **kwargs)


@contextmanager
def gpu() -> Iterator[None]:
    """vLLM's platform answers as on a CUDA machine whose memory is its own, with pinned memory to be had."""
    from vllm.platforms import current_platform
    from vllm.platforms.interface import PlatformEnum
    from vllm.utils import platform_utils

    caches = (platform_utils.is_pin_memory_available, platform_utils.is_uva_available)
    answers = {
        "_enum": PlatformEnum.CUDA,
        "device_type": "cuda",
        "is_pin_memory_available": lambda *_: True,
        "is_integrated_gpu": lambda *_: False,
    }
    with mock.patch.multiple(type(current_platform), **answers):
        for cache in caches:
            cache.cache_clear()
        try:
            yield
        finally:
            for cache in caches:
                cache.cache_clear()


@contextmanager
def machine() -> Iterator[Machine]:
    """Everything inside runs on fake tensors, on a GPU, with books kept."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with gpu(), FakeTensorMode(), Machine() as books, _Bindings():
        yield books
