"""Where hotsplit refuses to work: what it was not made for would give wrong answers or crash later.

Three checks: of the configuration before anything is loaded, of the layers once they are, and of a reload of weights
afterwards.  Each names everything that is in the way in one error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

import vllm.envs as envs
from vllm._fixpack import hotsplit_settings
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.utils import is_weights_pre_processed
from vllm.platforms import current_platform

ALONE = {
    "tensor_parallel_size": "--tensor-parallel-size",
    "pipeline_parallel_size": "--pipeline-parallel-size",
    "data_parallel_size": "--data-parallel-size",
    "prefill_context_parallel_size": "--prefill-context-parallel-size",
    "decode_context_parallel_size": "--decode-context-parallel-size",
}
NOT_WITH = {
    "enable_expert_parallel": "--enable-expert-parallel: every bank numbers its own experts",
    "enable_eplb": "--enable-eplb: it moves experts between weights that a split layer no longer has",
    "enable_elastic_ep": "--enable-elastic-ep: it moves experts",
    "enable_dbo": "--enable-dbo: two microbatches would use one counter and one workspace",
}


def refuse_config(vllm_config: Any, model_config: Any, settings: hotsplit_settings.Settings) -> None:
    """Hold a server's configuration against what hotsplit can do.

    :raises ValueError: naming every option that is in the way, and why.
    """
    problems = []
    if not current_platform.is_cuda():
        problems.append(f"the device is {current_platform.device_name or 'unknown'}: banks are pinned for NVIDIA GPUs")
    parallel = vllm_config.parallel_config
    for name, option in ALONE.items():
        if getattr(parallel, name) != 1:
            problems.append(f"{option} {getattr(parallel, name)}: all experts must be on one GPU")
    problems += [reason for name, reason in NOT_WITH.items() if getattr(parallel, name)]
    if vllm_config.lora_config is not None:
        problems.append("LoRA: adapters address weights that a split layer no longer has")
    if vllm_config.speculative_config is not None:
        problems.append("--speculative-config: each guessed token fetches its own experts, and the draft is loaded too")
    if vllm_config.weight_transfer_config is not None:
        problems.append("--weight-transfer-config: weights of a split layer cannot be replaced while it serves")
    if model_config.enable_sleep_mode:
        problems.append("--enable-sleep-mode: it discards weights and loads them again")
    offload = vllm_config.offload_config
    if offload.offload_backend == "prefetch" or offload.prefetch.offload_group_size > 0:
        problems.append("--offload-backend prefetch: whole layers move; hotsplit wants uva")
    if settings.counts and not settings.dry_run:
        if envs.VLLM_WEIGHT_OFFLOADING_DISABLE_UVA:
            problems.append("VLLM_WEIGHT_OFFLOADING_DISABLE_UVA: cold experts are read in place")
        if envs.VLLM_USE_DEEP_GEMM:
            problems.append("VLLM_USE_DEEP_GEMM is not 0: its warm-up reads the layers' own weights")
    backend = vllm_config.kernel_config.moe_backend
    if backend != "marlin":
        problems.append(f"--moe-backend {backend}: only marlin keeps to a map of experts here")
    if settings.live:
        largest = _decode_batch(vllm_config)
        if largest > settings.decode_max:
            problems.append(
                f"HOTSPLIT_DECODE_MAX={settings.decode_max}, but decode steps have up to {largest} tokens and would "
                "not be counted; set it to that, or a smaller --max-num-seqs"
            )
    if problems:
        raise ValueError("hotsplit cannot serve this configuration: " + "; ".join(problems))


def _decode_batch(vllm_config: Any) -> int:
    """Tokens of the largest decode step, as padded for a captured graph."""
    sequences = int(vllm_config.scheduler_config.max_num_seqs)
    sizes = vllm_config.compilation_config.cudagraph_capture_sizes or ()
    return min((size for size in sizes if size >= sequences), default=sequences)


def refuse_loader(loader: type) -> None:
    """Refuse a loader that does not pass through the hook after loading.

    :raises ValueError: if HOTSPLIT_ variables are set and ``loader`` has a ``load_model`` of its own.
    """
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    if hotsplit_settings.read() is not None and loader.load_model is not BaseModelLoader.load_model:
        raise ValueError(
            f"hotsplit cannot split what {loader.__name__} loads: it has its own way to finish a model; choose another "
            "--load-format, or unset the HOTSPLIT_ variables"
        )


def refuse_reload(model: nn.Module) -> None:
    """Refuse to load weights into a model with split layers: the banks would keep the old ones.

    :raises RuntimeError: if a layer of ``model`` is split.
    """
    split = [(name, getattr(module, "_hotsplit", None)) for name, module in model.named_modules()]
    names = [name for name, found in split if found is not None and found.banks]
    if names:
        raise RuntimeError(
            f"hotsplit: weights cannot be loaded again, {len(names)} layers are split ({names[0]} and others); restart "
            "the server with the new weights"
        )


def refuse_layers(layers: Iterable[tuple[str, RoutedExperts]]) -> None:
    """Hold loaded MoE layers against what hotsplit can split.

    :raises RuntimeError: naming every reason, with the layers that have it.
    """
    reasons: dict[str, list[str]] = {}
    names = []
    for name, layer in layers:
        names.append(name)
        for problem in _problems(layer):
            reasons.setdefault(problem, []).append(name)
    if not names:
        raise RuntimeError("hotsplit: no eligible MXFP4 MoE layers: the model has no routed experts")
    if reasons:
        text = "; ".join(
            f"{problem} ({len(where)} of {len(names)}, first {where[0]})" for problem, where in reasons.items()
        )
        none = any(len(where) == len(names) for where in reasons.values())
        what = "no eligible MXFP4 MoE layers" if none else "not every MoE layer can be split"
        raise RuntimeError(f"hotsplit: {what}: {text}")


def _problems(layer: RoutedExperts) -> list[str]:
    from vllm.model_executor.layers.fused_moe.experts.marlin_moe import MarlinExperts
    from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEKernelModularImpl
    from vllm.model_executor.layers.fused_moe.oracle.mxfp4 import Mxfp4MoeBackend
    from vllm.model_executor.layers.fused_moe.prepare_finalize.no_dp_ep import MoEPrepareAndFinalizeNoDPEPModular
    from vllm.model_executor.layers.quantization.mxfp4 import Mxfp4MoEMethod

    method = layer.quant_method
    if type(method) is not Mxfp4MoEMethod:
        return [f"its experts are kept by {type(method).__name__}, not by Mxfp4MoEMethod"]
    found = []
    if type(layer).forward_modular is not RoutedExperts.forward_modular:
        found.append(f"{type(layer).__name__} has a forward of its own")
    if method.mxfp4_backend is not Mxfp4MoeBackend.MARLIN:
        found.append(f"its backend is {method.mxfp4_backend.value}, not MARLIN")
    kernel = method.moe_kernel
    if kernel is None or method.is_monolithic or type(kernel.impl) is not FusedMoEKernelModularImpl:
        found.append("its kernel is not modular")
    else:
        if type(kernel.fused_experts) is not MarlinExperts:
            found.append(f"its experts run in {type(kernel.fused_experts).__name__}, not MarlinExperts")
        if type(kernel.prepare_finalize) is not MoEPrepareAndFinalizeNoDPEPModular:
            found.append(f"its tokens pass through {type(kernel.prepare_finalize).__name__}")
        if kernel.impl.shared_experts is not None:
            found.append("its kernel runs shared experts too")
        if layer.expert_map is not None:
            found.append("its experts have a map already")
    parallel = layer.moe_config.moe_parallel_config
    if parallel.use_ep or parallel.tp_size != 1 or parallel.dp_size != 1:
        found.append("its experts are spread over several ranks")
    if parallel.enable_eplb or layer._expert_routing_tables() is not None:
        found.append("its experts may move")
    if is_weights_pre_processed():
        found.append("its weights come from a cache, already processed")
    experts = layer.global_num_experts
    for name in ("w13_weight", "w2_weight", "w13_weight_scale", "w2_weight_scale"):
        tensor = getattr(layer, name, None)
        if tensor is None:
            found.append(f"it has no {name}")
        elif tensor.dim() != 3 or tensor.shape[0] != experts:
            found.append(f"its {name} is {tuple(tensor.shape)}, not one matrix for each of {experts} experts")
        elif not tensor.is_contiguous():
            found.append(f"its {name} is not contiguous")
    if any(getattr(layer, name, None) is not None for name in ("w13_bias", "w2_bias")):
        found.append("its experts have biases")
    return found
