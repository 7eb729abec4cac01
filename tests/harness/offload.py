"""vLLM's UVA offload at real sizes on a CPU, on the machine of ``uva.py``, whose books say what the host holds.

Real are the release's offloader, the function that makes and wraps the layers, the factory of the expert layers (so the
parameters have the names that the release gives them) and the context that puts weights back after post-processing.
"""

from __future__ import annotations

import gc
import importlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import uva
from onerank import one_rank
from torch import nn
from uva import GIB

LAYERS, EXPERTS, HIDDEN, INTERMEDIATE = 70, 384, 6144, 2048  # MiMo-V2.6-Pro; layer 0 has no experts
W13 = EXPERTS * 2 * INTERMEDIATE * HIDDEN // 2  # bytes: two values of 4 bits in each
W2 = EXPERTS * HIDDEN * INTERMEDIATE // 2


@contextmanager
def machine(kind: str = "cuda") -> Iterator[uva.Machine]:
    """A process on a machine with a GPU: inside, tensors are fake and the host's memory is accounted for."""
    for name in _BEFORE:  # what they look for when they are imported needs a real GPU
        importlib.import_module(f"vllm.{name}")
    from vllm.config import set_current_vllm_config

    with one_rank() as config, set_current_vllm_config(config), uva.machine(kind) as host, torch.device("cuda"):
        yield host


_BEFORE = (
    "model_executor.layers.fused_moe.layer",
    "model_executor.layers.quantization.online.fp8",  # in 0.33.0, imported with the first layer of experts
    "model_executor.model_loader.base_loader",
    "model_executor.models.mimo_v2",
    "model_executor.offloader.uva",
)

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


def placement(host: uva.Machine, layers: nn.ModuleList) -> dict[int, str]:
    """Layer -> which of its expert weights lie in the host's memory: "w13 w2", "w13" or ""."""
    found = {}
    for index, layer in enumerate(layers):
        held = {name.rsplit(".", 1)[1]: each for name, each in layer.named_parameters()}
        if "w13_weight" in held:
            names = [name for name in ("w13", "w2") if host.on_host(held[f"{name}_weight"])]
            found[index] = " ".join(names)
    return found


def forget() -> None:
    """Drop what vLLM itself keeps of the layers that were built; inside ``machine()``."""
    from vllm.config import get_current_vllm_config

    get_current_vllm_config().compilation_config.static_forward_context.clear()
    gc.collect()


def gib(size: int) -> str:
    """Bytes for people."""
    return f"{size / GIB:.2f} GiB"
