"""MoE layers in MXFP4 whose code is the release's own, down to the kernels: those are stand-ins in 32 bits on the CPU.

``Lab.load()`` runs the release's loader on a small model with real MoE runners: routing, RoutedExperts, Mxfp4MoEMethod,
the modular kernel, the Marlin experts with their blocks and workspaces, and the repacking of weights after loading.
What stands in for a GPU:

============================ =======================================================================================
gptq_marlin_repack           the same bytes in Marlin's shape, rows of 16 input channels
moe_align_block_size         tokens grouped by expert in blocks; with a map, those of absent experts left out
moe_wna16_marlin_gemm        products of the blocks' rows; all other rows of its output become NaN, as a workspace holds
                             anything
moe_sum                      the sum over a token's experts; absent ones are not read
silu_and_mul                 as its name says
get_accelerator_view_...     a copy that is counted as host memory
============================ =======================================================================================
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from onerank import one_rank
from torch import nn

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 256, 128, 16, 4
CELL = 3 * HIDDEN * INTERMEDIATE // 2  # bytes of one expert's two matrices, 4 bits each
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

_values = torch.tensor([*FP4, *(-value for value in FP4)])
_libraries: list[torch.library.Library] = []


def _repack(weight: torch.Tensor, size_k: int, size_n: int, num_bits: int, is_a_8bit: bool) -> torch.Tensor:
    """[K/8, N] int32, eight input channels in each, to Marlin's shape [K/16, 2 N]."""
    assert num_bits == 4
    assert weight.shape == (size_k // 8, size_n)
    return weight.reshape(size_k // 16, 2 * size_n).clone()


def _dense(packed: torch.Tensor, scale: torch.Tensor, size_k: int, size_n: int) -> torch.Tensor:
    """One expert's matrix [K, N]; scales stay in the order in which Marlin has them, [K/32, N]."""
    words = packed.reshape(size_k // 8, 1, size_n)
    shifts = torch.arange(0, 32, 4, dtype=torch.int32).view(1, 8, 1)
    return _values[(words >> shifts) & 15].reshape(size_k, size_n) * scale.float().repeat_interleave(32, 0)


def _align(
    topk_ids: torch.Tensor, num_experts: int, block: int, sorted_ids: torch.Tensor, expert_ids: torch.Tensor,
    total: torch.Tensor, expert_map: torch.Tensor | None, *_: Any,
) -> None:  # fmt: skip
    flat = topk_ids.reshape(-1)
    sorted_ids.fill_(flat.numel())  # "no token"
    expert_ids.fill_(-7)
    at = 0
    for expert in range(num_experts):
        local = expert if expert_map is None else int(expert_map[expert])
        mine = (flat == expert).nonzero()[:, 0]
        if local < 0 or not len(mine):
            continue
        sorted_ids[at : at + len(mine)] = mine.to(torch.int32)
        blocks = -(-len(mine) // block)
        expert_ids[at // block : at // block + blocks] = local
        at += blocks * block
    total.fill_(at)


def _gemm(arguments: Sequence[Any]) -> torch.Tensor:
    rows, output, weight, bias, scale = arguments[:5]
    sorted_ids, expert_ids, total, topk_weights = arguments[9:13]
    block, top_k, weighted = arguments[13:16]
    size_m, size_n, size_k = arguments[17:20]
    assert bias is None
    output = output.view(-1)[: size_m * top_k * size_n].view(size_m * top_k, size_n)
    output.fill_(float("nan"))
    for number in range(int(total) // block):
        ids = sorted_ids[number * block : (number + 1) * block]
        ids = ids[ids < size_m * top_k].long()
        expert = int(expert_ids[number])
        assert 0 <= expert < len(weight)
        made = rows[ids // top_k].float() @ _dense(weight[expert], scale[expert], size_k, size_n)
        if weighted:
            made = made * topk_weights.reshape(-1)[ids].unsqueeze(1)
        output[ids] = made.to(output.dtype)
    return output


def _sum(rows: torch.Tensor, output: torch.Tensor, topk_ids: Any, expert_map: Any) -> None:
    if expert_map is None:
        output.copy_(rows.float().sum(1))
        return
    present = (expert_map[topk_ids.long()] >= 0).unsqueeze(-1)
    output.copy_(torch.where(present, rows.float(), 0.0).sum(1))


def _silu_and_mul(output: torch.Tensor, rows: torch.Tensor) -> None:
    gate, up = rows.float().chunk(2, -1)
    output.copy_(torch.nn.functional.silu(gate) * up)


class Host:
    """Which tensors lie in host memory, by storage."""

    def __init__(self) -> None:
        self._kept: list[torch.Tensor] = []  # so that no address is used twice

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        self._kept.append(tensor.detach())
        return tensor

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """What ``get_accelerator_view_from_cpu_tensor`` gives for a tensor that is not pinned."""
        assert tensor.device.type == "cpu"
        return self.put(tensor.clone())

    def holds(self, tensor: torch.Tensor) -> bool:
        at = tensor.untyped_storage().data_ptr()
        return any(each.untyped_storage().data_ptr() == at for each in self._kept)


@contextlib.contextmanager
def gpu() -> Iterator[Host]:
    """A machine on which vLLM's MoE code believes in an NVIDIA GPU and finds the stand-ins, as the only rank."""
    from vllm import _custom_ops
    from vllm.model_executor.layers.fused_moe.experts.marlin_moe import MarlinExperts
    from vllm.model_executor.layers.quantization.utils import marlin_utils
    from vllm.platforms import current_platform
    from vllm.utils import torch_utils

    importlib.import_module("vllm.model_executor.layers.quantization.online.fp8")  # asks the platform at import
    host = Host()

    def gemm(*args: Any, **kwargs: Any) -> torch.Tensor:
        names = ("moe_block_size", "top_k", "mul_topk_weights", "b_q_type", "size_m", "size_n", "size_k")
        return _gemm([*args, *(kwargs[name] for name in names)])

    operators = {
        "gptq_marlin_repack": lambda b_q_weight, **kwargs: _repack(b_q_weight, **kwargs),
        "moe_align_block_size": _align,
        "moe_wna16_marlin_gemm": gemm,
        "moe_sum": lambda rows, output, topk_ids=None, expert_map=None: _sum(rows, output, topk_ids, expert_map),
    }
    if not hasattr(torch.ops._C, "silu_and_mul"):
        library = torch.library.Library("_C", "FRAGMENT")
        library.define("silu_and_mul(Tensor! result, Tensor input) -> ()")
        library.impl("silu_and_mul", _silu_and_mul, "CPU")
        _libraries.append(library)
    with contextlib.ExitStack() as stack:
        stack.enter_context(one_rank())
        for name, operator in operators.items():
            stack.enter_context(mock.patch.object(_custom_ops, name, operator))
        patches = [
            mock.patch.object(MarlinExperts, "_supports_current_device", staticmethod(lambda: True)),
            mock.patch.object(marlin_utils, "num_compute_units", return_value=1),
            mock.patch.object(torch_utils, "get_accelerator_view_from_cpu_tensor", host.view),
            mock.patch.object(type(current_platform), "is_cuda", return_value=True),
            mock.patch.object(torch.accelerator, "empty_cache"),
            mock.patch.object(torch_utils, "_current_stream_tls", SimpleNamespace(value="the only stream")),
        ]
        for patch in patches:
            stack.enter_context(patch)
        yield host


def route(hidden_states: torch.Tensor, gating_output: torch.Tensor, topk: int, renormalize: bool) -> Any:
    """Softmax, top k, weights that add up to 1; ties by expert."""
    weights, ids = torch.topk(gating_output.float().softmax(-1), topk)
    return weights / weights.sum(-1, keepdim=True), ids.to(torch.int32)


class Block(nn.Module):
    """A decoder layer without attention; layer 0 is dense, as in MiMo-V2."""

    def __init__(self, number: int, experts: int, quantization: Any, prefix: str) -> None:
        from vllm.model_executor.layers.fused_moe.layer import FusedMoEFactory

        super().__init__()
        self.mlp = nn.Module()
        self.gate = nn.Parameter(torch.zeros(experts, HIDDEN), requires_grad=False)
        self.moe = number > 0
        if self.moe:
            self.mlp.experts = FusedMoEFactory(
                num_experts=experts, top_k=TOP_K, hidden_size=HIDDEN, intermediate_size=INTERMEDIATE,
                params_dtype=torch.bfloat16, quant_config=quantization, custom_routing_function=route,
                prefix=f"{prefix}.{number}.mlp.experts",
            )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.moe:
            return x
        normed = (x.float() * (x.float().square().mean(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)
        return x + self.mlp.experts(normed, normed @ self.gate.T)


class Network(nn.Module):
    """A few blocks."""

    def __init__(self, layers: int, experts: int, quantization: Any) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.layers = nn.ModuleList(
            [Block(number, experts, quantization, "model.layers") for number in range(layers + 1)]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.model.layers:
            x = layer(x)
        return x


class Lab:
    """A server's configuration and the release's loader, for networks of ``layers`` MoE layers.

    ``offloaded`` says which weights of which layers lie in host memory once they are loaded, as UVA offload would have
    it: by default both of the first layer, and the first one of the second layer.
    """

    def __init__(self, host: Host, layers: int = 4, experts: int = EXPERTS) -> None:
        from vllm.config import DeviceConfig, VllmConfig

        self.host, self.layers, self.experts = host, layers, experts
        self.offloaded: Mapping[int, Sequence[str]] = {1: ("w13_weight", "w2_weight"), 2: ("w13_weight",)}
        self.config = VllmConfig(device_config=DeviceConfig(device="cpu"))
        self.config.kernel_config.moe_backend = "marlin"
        self.config.scheduler_config.max_num_seqs = 8
        self.model_config = SimpleNamespace(
            dtype=torch.bfloat16, hf_config=SimpleNamespace(), revision=None, quantization="fp8",
            enable_sleep_mode=False, word_embeddings_untied_by_checkpoint=False,
        )  # fmt: skip
        self.network: Any = None

    def load(self, **loader: Any) -> Network:
        """A network with random weights (the same ones each time), through ``BaseModelLoader.load_model``."""
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.layers.quantization.fp8 import Fp8Config
        from vllm.model_executor.model_loader import base_loader

        lab = self
        quantization = Fp8Config(True, "dynamic", weight_block_size=[128, 128], store_dtype="mxfp4")
        processed = base_loader.process_weights_after_loading

        class Loader(base_loader.BaseModelLoader):
            def download_model(self, model_config: Any) -> None:
                raise AssertionError("there is nothing to download")

            def create_model(self, *, vllm_config: Any, model_config: Any, prefix: str = "") -> Network:
                return Network(lab.layers, lab.experts, quantization)

            def load_weights(self, model: nn.Module, model_config: Any) -> None:
                fill(model)

        def place(model: nn.Module, *args: Any) -> None:
            processed(model, *args)
            for number, names in lab.offloaded.items():
                experts = lab.routed(model, number)
                for name in names:
                    lab.host.put(getattr(experts, name))
                    getattr(experts, name)._vllm_is_uva_offloaded = True

        self.config.compilation_config.static_forward_context.clear()
        with set_current_vllm_config(self.config), mock.patch.object(
            base_loader, "process_weights_after_loading", place
        ):
            self.network = Loader(self.config.load_config).load_model(self.config, self.model_config)
        return self.network

    @staticmethod
    def routed(model: nn.Module, number: int) -> Any:
        """The RoutedExperts of a layer."""
        return model.model.layers[number].mlp.experts.routed_experts

    def run(self, x: torch.Tensor, slots: torch.Tensor | None = None) -> torch.Tensor:
        """One step of the network, as the model runner makes it; ``slots`` are those of the KV cache."""
        from vllm.forward_context import set_forward_context

        mapping = None if slots is None else {"model.layers.0.self_attn.attn": slots}
        with torch.no_grad(), set_forward_context(None, self.config, num_tokens=len(x), slot_mapping=mapping):
            return self.network(x)

    def in_hbm(self, number: int) -> float:
        """How many experts' weights a layer has in HBM."""
        experts = self.routed(self.network, number)
        tensors = [experts.w13_weight, experts.w2_weight]
        split = experts.__dict__.get("_hotsplit")
        for bank in split.banks if split else ():
            tensors += [bank.w13, bank.w2]
        return sum(each.nbytes for each in tensors if not self.host.holds(each)) / CELL


def fill(model: nn.Module, seed: int = 0) -> None:
    """Random weights in the checkpoint's format; outputs of some 0.5 for inputs of 1."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        low, high = (118, 124) if name.endswith("_scale") else (0, 256)
        if parameter.dtype == torch.uint8:
            parameter.data = torch.randint(low, high, parameter.shape, dtype=torch.uint8, generator=generator)
        else:
            parameter.data = (torch.randn(parameter.shape, generator=generator) / 8).to(parameter.dtype)


def tokens(count: int, seed: int = 1) -> torch.Tensor:
    """Inputs of a network."""
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)
