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

The view of a tensor in host memory is on "cuda" and takes no HBM; it keeps the pinned tensor that it was made of.
Modelled on torch 2.13's CachingHostAllocator and vLLM's cuda_view.cu (0.30.0 to 0.33.0), not on a driver.
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
OPERATORS = torch.library.Library("_C", "FRAGMENT")
VIEWS = ("get_cuda_view_from_cpu_tensor", "get_xpu_view_from_cpu_tensor")
for each_view in VIEWS:
    if not hasattr(torch.ops._C, each_view):
        OPERATORS.define(f"{each_view}(Tensor cpu_tensor) -> Tensor")
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
        self._taken: Counter[str] = Counter()  # by place; "kept" are pinned blocks that no tensor uses
        self._kept: Counter[int] = Counter()  # how many of those, by size
        self.peak_host = self.peak_hbm = 0
        self.pin_calls = 0
        self.written = 0  # bytes copied into views of host memory

    @property
    def hbm(self) -> int:
        self._sweep()
        return self._taken["hbm"]

    @property
    def pageable(self) -> int:
        self._sweep()
        return self._taken["pageable"]

    @property
    def exact(self) -> int:
        self._sweep()
        return self._taken["exact"]

    @property
    def pinned(self) -> int:
        """With the blocks that the allocator keeps."""
        self._sweep()
        return self._taken["pinned"] + self._taken["kept"]

    @property
    def reserved(self) -> int:
        """All of the host's memory that the system does not have."""
        self._sweep()
        return sum(self._taken.values()) - self._taken["hbm"]

    def on_host(self, tensor: torch.Tensor) -> bool:
        """Whether the bytes of a tensor, whatever its device, lie in host memory."""
        return self._books[key(tensor)].place != "hbm"

    def _sweep(self) -> None:
        """Forget the storages that died; a view's death may be its base's."""
        while dead := [at for at, booked in self._books.items() if booked.alive.expired()]:
            for at in dead:
                booked = self._books.pop(at)
                self._taken[booked.place] -= booked.taken
                if booked.place == "pinned":
                    self._kept[booked.taken] += 1
                    self._taken["kept"] += booked.taken

    def _book(self, tensor: torch.Tensor, place: str, base: torch.Tensor | None = None) -> None:
        self._sweep()
        taken = tensor.untyped_storage().nbytes() if place != "alias" else 0
        if place == "pinned":
            taken = 1 << max(taken - 1, 0).bit_length()
            if self._kept[taken]:
                self._kept[taken] -= 1
                self._taken["kept"] -= taken
        self._books[key(tensor)] = Booked(tensor, place, taken, base)
        self._taken[place] += taken
        self.peak_host = max(self.peak_host, sum(self._taken.values()) - self._taken["hbm"])
        self.peak_hbm = max(self.peak_hbm, self._taken["hbm"])

    def _known(self, tensor: torch.Tensor) -> bool:
        booked = self._books.get(key(tensor))
        return booked is not None and not booked.alive.expired()

    def _view(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._books[key(tensor)].place == "pinned":
            view = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
            self._book(view, "alias", tensor)
        else:  # new memory, which is filled in contiguous order
            view = torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")
            self._book(view, "exact")
        return view

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is aten.is_pinned.default:
            return self._books[key(args[0])].place == "pinned"
        if any(func is getattr(torch.ops._C, name).default for name in VIEWS):
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


def _part(tensor: torch.Tensor, index: Any) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """``tensor[index]`` by operators: the view that integers, slices and None make, and the tensors of indices left."""
    given = index if isinstance(index, tuple) else (index,)
    if any(each is Ellipsis for each in given):
        at = next(number for number, each in enumerate(given) if each is Ellipsis)
        missing = tensor.dim() - sum(each is not None and each is not Ellipsis for each in given)
        given = (*given[:at], *[slice(None)] * missing, *given[at + 1 :])
    chosen: list[torch.Tensor | None] = []  # one for each dimension so far
    for each in given:
        if isinstance(each, int):
            tensor = aten.select.int(tensor, len(chosen), each)
        elif isinstance(each, slice):
            if each != slice(None):
                step = 1 if each.step is None else each.step
                tensor = aten.slice.Tensor(tensor, len(chosen), each.start, each.stop, step)
            chosen.append(None)
        elif each is None:
            tensor = aten.unsqueeze.default(tensor, len(chosen))
            chosen.append(None)
        else:
            chosen.append(torch.as_tensor(each))
    return tensor, chosen if any(each is not None for each in chosen) else []


class _Bindings(TorchFunctionMode):
    """Methods whose Python bindings want a real CUDA before a fake tensor is asked: say the same to the operators."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.copy_:
            return aten.copy_.default(args[0], args[1])
        if func is torch.Tensor.contiguous and not kwargs:
            return aten.contiguous.default(args[0])
        if func is torch.Tensor.__getitem__:
            part, chosen = _part(args[0], args[1])
            return aten.index.Tensor(part, chosen) if chosen else part
        if func is torch.Tensor.__setitem__:
            part, chosen = _part(args[0], args[1])
            if chosen:
                aten.index_put_.default(part, chosen, torch.as_tensor(args[2]))
            elif isinstance(args[2], torch.Tensor):
                aten.copy_.default(part, args[2])
            else:
                aten.fill_.Scalar(part, args[2])
            return None
        if func == torch.Tensor.data.__set__:  # made anew at each look
            func(*args)
            args[0].fake_device = args[1].fake_device  # torch leaves it as it was
            return None
        if func is torch.Tensor.to:
            device = next((each for each in args[1:] if isinstance(each, str | torch.device)), kwargs.get("device"))
            if device is not None and torch.device(device).type == "cuda":
                dtype = next((each for each in args[1:] if isinstance(each, torch.dtype)), kwargs.get("dtype"))
                if args[0].device.type == "cuda" and dtype in (None, args[0].dtype):
                    return args[0]
                return aten._to_copy.default(args[0], dtype=dtype, device=torch.device(device))
        return func(*args, **kwargs)


@contextmanager
def gpu(kind: str = "cuda") -> Iterator[None]:
    """vLLM's platform answers as on a machine with a GPU ("cuda" or "xpu"), and with pinned memory to be had."""
    from vllm.platforms import current_platform
    from vllm.platforms.interface import PlatformEnum
    from vllm.utils import platform_utils

    caches = (platform_utils.is_pin_memory_available, platform_utils.is_uva_available)
    answers = {
        "_enum": {"cuda": PlatformEnum.CUDA, "xpu": PlatformEnum.XPU}[kind],
        "device_type": kind,
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
def machine(kind: str = "cuda") -> Iterator[Machine]:
    """Everything inside runs on fake tensors, on a GPU, with books kept; its tensors say "cuda" whatever the kind."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with gpu(kind), FakeTensorMode(), Machine() as books, _Bindings():
        yield books
