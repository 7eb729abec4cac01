"""vLLM's UVA offload at real sizes on a CPU: fake tensors, a stand-in platform, and an account of the host's memory.

Real are the release's offloader, the function that makes and wraps the layers, the factory of the expert layers (so the
parameters have the names that the release gives them) and the context that puts weights back after post-processing.
Tensors are fake, so that hundreds of GiB cost nothing.  Stand-ins are what needs a GPU:

- ``pin_memory()``, and ``empty_like(…, pin_memory=True)``: PyTorch's caching host allocator gives a block of the next
  power of two and keeps it for later when it is freed;
- ``get_cuda_view_from_cpu_tensor``: a pinned tensor is aliased; for one that is not, exactly its bytes are allocated
  with cudaHostAlloc, filled in contiguous order, and freed with the view.

Both are models of what the CUDA sources say, not measurements.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef

GIB = 2**30
LAYERS, EXPERTS, HIDDEN, INTERMEDIATE = 70, 384, 6144, 2048  # MiMo-V2.6-Pro; layer 0 has no experts
W13 = EXPERTS * 2 * INTERMEDIATE * HIDDEN // 2  # bytes: two values of 4 bits in each
W2 = EXPERTS * HIDDEN * INTERMEDIATE // 2


class Block:
    """A piece of the host's memory and the tensors that hold it."""

    def __init__(self, kind: str, size: int, holder: torch.Tensor) -> None:
        self.kind = kind  # "pinned" (rounded up, cached), "exact" or "pageable"
        self.size = size
        self.holders = [StorageWeakRef(holder.untyped_storage())]

    @property
    def live(self) -> bool:
        return any(not each.expired() for each in self.holders)

    def holds(self, tensor: torch.Tensor) -> bool:
        return any(not each.expired() and each.cdata == tensor.untyped_storage()._cdata for each in self.holders)


class Host:
    """The host's memory as the offload uses it."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.peak = 0
        self.pins = 0  # calls that asked the caching host allocator

    def reserved(self, *kinds: str) -> int:
        """Bytes that the system does not have: live ones, and what the caching allocator keeps."""
        return sum(
            each.size
            for each in self.blocks
            if (each.live or each.kind == "pinned") and each.kind in (kinds or ("pinned", "exact", "pageable"))
        )

    def allocate(self, kind: str, nbytes: int, holder: torch.Tensor) -> None:
        """Account for one allocation; a tensor that is here already is not another one."""
        if self.on_host(holder):
            return
        size = nbytes
        if kind == "pinned":
            self.pins += 1
            size = 1 << max(0, nbytes - 1).bit_length()
            for each in self.blocks:
                if each.kind == kind and each.size == size and not each.live:
                    each.holders = [StorageWeakRef(holder.untyped_storage())]
                    return
        self.blocks = [each for each in self.blocks if each.live or each.kind == "pinned"]
        self.blocks.append(Block(kind, size, holder))
        self.peak = max(self.peak, self.reserved())

    def on_host(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor that says "cuda" lies in the host's memory."""
        return any(each.holds(tensor) for each in self.blocks)


def nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _platform(kind: str) -> Any:
    from vllm.platforms.interface import PlatformEnum, UnspecifiedPlatform

    class Gpu(UnspecifiedPlatform):
        """A device of that kind, as far as the offload asks."""

        _enum = PlatformEnum.CUDA if kind == "cuda" else PlatformEnum.XPU
        device_name = device_type = kind
        dispatch_key = kind.upper()

        @classmethod
        def is_pin_memory_available(cls) -> bool:
            return True

    return Gpu()


@contextmanager
def machine(patch: pytest.MonkeyPatch, kind: str = "cuda") -> Iterator[Host]:
    """A process on a machine with a GPU: inside, tensors are fake and the host's memory is accounted for."""
    import vllm.platforms
    from vllm.utils import platform_utils

    for name in _BEFORE:  # what they look for when they are imported needs a real GPU
        importlib.import_module(f"vllm.{name}")
    patch.setattr(vllm.platforms, "_current_platform", _platform(kind))
    platform_utils.is_pin_memory_available.cache_clear()
    if hasattr(platform_utils.is_uva_available, "cache_clear"):
        platform_utils.is_uva_available.cache_clear()
    host = Host()
    real_to, real_empty_like = torch.Tensor.to, torch.empty_like

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        found = real_to(self, *args, **kwargs)
        if self.device.type != "cpu" and found.device.type == "cpu":
            host.allocate("pageable", nbytes(found), found)
        return found

    def empty_like(like: torch.Tensor, *args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        found = real_empty_like(like, *args, **kwargs)
        if found.device.type == "cpu":
            host.allocate("pinned" if pin_memory else "pageable", nbytes(found), found)
        return found

    def pin_memory(self: torch.Tensor) -> torch.Tensor:
        found = real_empty_like(self)
        host.allocate("pinned", nbytes(found), found)
        return found

    def blocks(tensor: torch.Tensor) -> list[Block]:
        return [each for each in host.blocks if each.kind == "pinned" and each.holds(tensor)]

    def view(cpu: torch.Tensor) -> torch.Tensor:
        pinned = blocks(cpu)
        found = torch.empty(cpu.shape, dtype=cpu.dtype, device="cuda")
        if pinned:
            found = real_empty_like(cpu, device="cuda")  # with its strides
        if pinned:
            pinned[0].holders.append(StorageWeakRef(found.untyped_storage()))
        else:
            host.allocate("exact", nbytes(cpu), found)
        return found

    patch.setattr(torch.Tensor, "to", to)
    patch.setattr(torch.Tensor, "pin_memory", pin_memory)
    patch.setattr(torch.Tensor, "is_pinned", lambda self: bool(blocks(self)))
    patch.setattr(torch, "empty_like", empty_like)
    patch.setattr(torch.ops._C, "get_cuda_view_from_cpu_tensor", view, raising=False)
    patch.setattr(torch.ops._C, "get_xpu_view_from_cpu_tensor", view, raising=False)
    with _one_rank(), FakeTensorMode(), torch.device("cuda"):
        yield host


_BEFORE = (
    "model_executor.layers.fused_moe.layer",
    "model_executor.model_loader.base_loader",
    "model_executor.models.mimo_v2",
    "model_executor.offloader.uva",
)

_INITIALISED: list[Any] = []


@contextmanager
def _one_rank() -> Iterator[None]:
    """vLLM's groups of one process, made once, and a configuration."""
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    if not _INITIALISED:
        import vllm.platforms
        from vllm.platforms.interface import UnspecifiedPlatform

        stand_in, vllm.platforms._current_platform = vllm.platforms._current_platform, UnspecifiedPlatform()
        try:
            config = VllmConfig(device_config=DeviceConfig("cpu"))
            with set_current_vllm_config(config):
                meeting = tempfile.mktemp(prefix="one-rank-")
                init_distributed_environment(1, 0, f"file://{meeting}", 0, "gloo")
                initialize_model_parallel(1, 1)
        finally:
            vllm.platforms._current_platform = stand_in
        _INITIALISED.append(config)
    config = _INITIALISED[0]
    config.compilation_config.static_forward_context.clear()
    with set_current_vllm_config(config):
        yield


def parameter(*shape: int) -> nn.Parameter:
    """Bytes on the device."""
    return nn.Parameter(torch.empty(*shape, dtype=torch.uint8), requires_grad=False)


def _quantization() -> Any:
    """A quantisation whose experts have the tensors of MXFP4 and no kernel."""
    from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase

    class Method(FusedMoEMethodBase):
        def create_weights(
            self, layer: nn.Module, num_experts: int, hidden_size: int, intermediate_size_per_partition: int,
            params_dtype: torch.dtype, **extra: Any,
        ) -> None:
            up, hidden = 2 * intermediate_size_per_partition, hidden_size
            layer.register_parameter("w13_weight", parameter(num_experts, up, hidden // 2))
            layer.register_parameter("w2_weight", parameter(num_experts, hidden, up // 4))
            layer.register_parameter("w13_weight_scale", parameter(num_experts, up, hidden // 32))
            layer.register_parameter("w2_weight_scale", parameter(num_experts, hidden, up // 64))

        def get_fused_moe_quant_config(self, layer: nn.Module) -> None:
            return None

        def apply(self, *args: Any, **kwargs: Any) -> None:
            raise NotImplementedError

    class Quantization:
        online_quantization_config = None

        def get_quant_method(self, layer: Any, prefix: str) -> Any:
            return Method(layer.moe_config)

    return Quantization()


def dense_layer() -> nn.Module:
    """A decoder layer without experts."""
    layer, mlp = nn.Module(), nn.Module()
    mlp.gate_up_proj, mlp.down_proj = nn.Module(), nn.Module()
    mlp.gate_up_proj.weight, mlp.down_proj.weight = parameter(64, 64), parameter(64, 64)
    layer.mlp = mlp
    return layer


def expert_layer(prefix: str) -> nn.Module:
    """A decoder layer whose experts the release's own factory makes."""
    from vllm.model_executor.layers.fused_moe import layer as module

    layer, attention, mlp = nn.Module(), nn.Module(), nn.Module()
    attention.qkv_proj = nn.Module()
    attention.qkv_proj.weight = parameter(64, 64)
    mlp.gate = nn.Module()
    mlp.gate.weight = parameter(64, 64)
    mlp.experts = module.FusedMoEFactory(
        num_experts=EXPERTS, top_k=8, hidden_size=HIDDEN, intermediate_size=INTERMEDIATE, renormalize=True,
        quant_config=_quantization(), prefix=f"{prefix}.mlp.experts",
    )
    layer.self_attn, layer.mlp = attention, mlp
    return layer


def offloader(gib: float, entries: set[str]) -> Any:
    """The release's offloader, made as the engine makes it and put in its place."""
    from vllm.config.offload import OffloadConfig, UVAOffloadConfig
    from vllm.model_executor.offloader import base

    config = OffloadConfig(
        offload_backend="uva", uva=UVAOffloadConfig(cpu_offload_gb=gib, cpu_offload_params=entries)
    )
    base.set_offloader(base.create_offloader(config))
    return base.get_offloader()


_COUNTER = itertools.count()


def build(layers: int = LAYERS, dense: int = 1, made: Callable[[str], nn.Module] = expert_layer) -> nn.ModuleList:
    """The decoder, through the release's ``make_layers``, which wraps each layer as it is made."""
    from vllm.model_executor.models.utils import make_layers

    run = next(_COUNTER)  # layer names are unique in a process

    def layer(prefix: str) -> nn.Module:
        return dense_layer() if int(prefix.rsplit(".", 1)[1]) < dense else made(f"model{run}.{prefix}")

    return make_layers(layers, layer, "layers")[2]


def placement(host: Host, layers: nn.ModuleList) -> dict[int, str]:
    """Layer -> which of its expert weights lie in the host's memory: "w13 w2", "w13" or ""."""
    found = {}
    for index, layer in enumerate(layers):
        held = {name.rsplit(".", 1)[1]: each for name, each in layer.named_parameters()}
        if "w13_weight" in held:
            names = [name for name in ("w13", "w2") if host.on_host(held[f"{name}_weight"])]
            found[index] = " ".join(names)
    return found


def forget() -> None:
    """Drop what vLLM itself keeps of the layers that were built."""
    _INITIALISED[0].compilation_config.static_forward_context.clear()
    gc.collect()


def gib(size: int) -> str:
    """Bytes for people."""
    return f"{size / GIB:.2f} GiB"
