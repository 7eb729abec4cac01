#!/usr/bin/env python3
"""What the CPU proofs of the GB300 profiles cannot show, on one NVIDIA GPU with 90 GiB or more: prints one JSON object.

    python benchmarks/gpu/hotsplit_h200.py [--only CHECK...] [--experts 64] [--model DIR] [--seconds 480]

Run it with the Python of a vLLM that has the profile's fixes and `hotsplit` applied (CUDA 12 or later, compute
capability 8.0 or later; written for an H200). Each check is an interpreter of its own, so that one that breaks the CUDA
context, or leaks, does not spoil the others. All of them together take under 8 minutes.

repack   a layer of real MXFP4 Marlin experts in host memory: what repacking after loading takes of HBM and of the host
         (0 of both), and whether its output is that of a layer in HBM, to the bit
pins     host memory that 2.25 and 4.5 GiB take pinned by torch, by torch with pinned_max_cached_size_mb, and by vLLM's
         view of a tensor that is not pinned; and what comes back when they are dropped
banks    two banks against one on the real kernels: the difference, all-hot and all-cold tokens, a workspace of NaN, the
         counter inside a CUDA graph with padded tokens
release  ten cold banks built and dropped: available host memory must not fall
serve    with --model only: 4 layers with dummy weights through vllm.LLM, split, and its log lines

The exit code is 0 if every check that ran is "ok". No figure here is a claim about a GB300: its link is another one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

GIB = 1 << 30
HIDDEN, INTERMEDIATE, TOP_K = 6144, 2048, 8  # MiMo-V2.6-Pro-RL
CELL = 3 * HIDDEN * INTERMEDIATE // 2
BOUND = 4e-3  # relative: two 16-bit sums in the place of one give 2.8e-3
SLACK = 0.25 * GIB  # other processes move MemAvailable too


def host_available(path: str = "/proc/meminfo") -> int:
    """MemAvailable in bytes.

    :raises OSError: where there is no /proc.  :raises ValueError: where the line is missing.
    """
    with open(path, encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise ValueError(f"{path} has no MemAvailable")


def slope(values: list[float]) -> float:
    """Least squares: what ``values`` gain per step."""
    middle = (len(values) - 1) / 2
    mean = sum(values) / len(values)
    squares = sum((at - middle) ** 2 for at in range(len(values)))
    return sum((at - middle) * (value - mean) for at, value in enumerate(values)) / squares


def verdict(results: dict[str, dict[str, Any]]) -> tuple[dict[str, Any], int]:
    """All results in one object, and the exit code."""
    ran = {name: result for name, result in results.items() if not result.get("skipped")}
    failed = sorted(name for name, result in ran.items() if not result.get("ok"))
    return {"schema_version": 1, "ok": bool(ran) and not failed, "failed": failed, "checks": results}, int(
        bool(failed) or not ran
    )


# The checks; each runs in an interpreter of its own and returns figures with "ok".


def _config() -> Any:
    import torch
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.v1.worker.workspace import init_workspace_manager

    config = VllmConfig()
    config.kernel_config.moe_backend = "marlin"
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"file://{tempfile.mkdtemp()}/store", 0, backend="nccl")
        initialize_model_parallel(1, 1)
    init_workspace_manager(torch.device("cuda"))
    return config


def _layer(config: Any, number: int, experts: int, offload: bool) -> Any:
    """A layer with random experts, as loaded; the same ones for the same number of experts."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.fused_moe.layer import FusedMoEFactory
    from vllm.model_executor.layers.quantization.fp8 import Fp8Config
    from vllm.model_executor.model_loader.utils import device_loading_context
    from vllm.utils.torch_utils import get_accelerator_view_from_cpu_tensor

    quantization = Fp8Config(True, "dynamic", weight_block_size=[128, 128], store_dtype="mxfp4")
    with set_current_vllm_config(config), torch.device("cuda"):
        runner = FusedMoEFactory(
            num_experts=experts, top_k=TOP_K, hidden_size=HIDDEN, intermediate_size=INTERMEDIATE,
            params_dtype=torch.bfloat16, quant_config=quantization, prefix=f"model.layers.{number}.mlp.experts",
        )  # fmt: skip
    layer = runner.routed_experts
    generator = torch.Generator(device="cuda").manual_seed(1)
    for name, parameter in layer.named_parameters():
        low, high = (118, 124) if name.endswith("_scale") else (0, 256)
        parameter.data.copy_(
            torch.randint(low, high, parameter.shape, dtype=torch.uint8, device="cuda", generator=generator)
        )
    if offload:
        for name in ("w13_weight", "w2_weight"):
            parameter = getattr(layer, name)
            parameter.data = get_accelerator_view_from_cpu_tensor(parameter.data.cpu())
            parameter._vllm_is_uva_offloaded = True
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0], host_available()
    with set_current_vllm_config(config), device_loading_context(layer, torch.device("cuda")):
        layer.quant_method.process_weights_after_loading(layer)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    layer.taken = before[0] - torch.cuda.mem_get_info()[0], before[1] - host_available()
    return layer


def _tokens(count: int, experts: range) -> tuple[Any, Any, Any]:
    import torch

    generator = torch.Generator(device="cuda").manual_seed(2)
    x = torch.randn(count, HIDDEN, device="cuda", generator=generator).bfloat16()
    scores = torch.rand(count, len(experts), device="cuda", generator=generator)
    weights, ids = scores.softmax(-1).topk(TOP_K)
    return x, weights / weights.sum(-1, keepdim=True), (ids + experts.start).to(torch.int32)


def _forward(layer: Any, tokens: tuple[Any, Any, Any]) -> Any:
    x, weights, ids = tokens
    return layer.forward_modular(x=x, topk_weights=weights, topk_ids=ids)


def repack(experts: int) -> dict[str, Any]:
    import torch

    config = _config()
    twin, layer = _layer(config, 1, experts, False), _layer(config, 2, experts, True)
    tokens = _tokens(64, range(experts))
    same = torch.equal(_forward(twin, tokens), _forward(layer, tokens))
    hbm, host = layer.taken
    return {
        "ok": same and hbm < SLACK and host < SLACK, "same_output": same, "hbm_taken_gib": hbm / GIB,
        "host_taken_gib": host / GIB, "weights_gib": experts * CELL / GIB,
    }  # fmt: skip


def pins(experts: int) -> dict[str, Any]:
    import torch
    from vllm.utils.torch_utils import get_accelerator_view_from_cpu_tensor

    torch.cuda.init()
    ways: dict[str, Callable[[int], Any]] = {
        "pin_memory": lambda size: torch.empty(size, dtype=torch.uint8).pin_memory(),
        "exact": lambda size: get_accelerator_view_from_cpu_tensor(torch.empty(size, dtype=torch.uint8)),
    }
    found: dict[str, Any] = {"allocator": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")}
    for name, way in ways.items():
        for size in (int(2.25 * GIB), int(4.5 * GIB)):
            before = host_available()
            made = way(size)
            torch.cuda.synchronize()
            taken = before - host_available()
            del made
            torch.cuda.synchronize()
            kept = before - host_available()
            found[f"{name} {size / GIB:g}"] = {"taken_gib": taken / GIB, "kept_after_drop_gib": kept / GIB}
    exact = [found[f"exact {size:g}"] for size in (2.25, 4.5)]
    found["ok"] = all(
        abs(each["taken_gib"] - size) < 0.25 and each["kept_after_drop_gib"] < 0.25
        for size, each in zip((2.25, 4.5), exact, strict=True)
    )
    return found


def _split(layer: Any, hot: int) -> Any:
    import torch
    from vllm._fixpack.hotsplit_banks import Split, build
    from vllm._fixpack.hotsplit_machine import Machine

    machine = Machine(torch.device("cuda"))
    chosen = range(hot), range(hot, layer.global_num_experts)
    return Split(build(layer, *chosen, machine.in_hbm, machine.in_host))


def banks(experts: int) -> dict[str, Any]:
    import torch
    from vllm._fixpack.hotsplit_counter import Counter
    from vllm.forward_context import set_forward_context
    from vllm.v1.worker.workspace import current_workspace_manager

    config = _config()
    layer, hot = _layer(config, 1, experts, False), experts // 3
    cases = {"mixed": range(experts), "all hot": range(hot), "all cold": range(hot, experts)}
    inputs = {name: _tokens(16, chosen) for name, chosen in cases.items()}
    wanted = {name: _forward(layer, tokens) for name, tokens in inputs.items()}
    layer._hotsplit = _split(layer, hot)
    found: dict[str, Any] = {}
    for name, tokens in inputs.items():
        for space in current_workspace_manager()._current_workspaces:
            if space is not None:
                space.fill_(255)  # NaN in 16 bits
        got = _forward(layer, tokens)
        found[name] = float((got.float() - wanted[name].float()).norm() / wanted[name].float().norm())
    # The counter in a graph of 16 tokens, of which 3 are live.
    counter = Counter([1], experts, TOP_K, 16, torch.device("cuda"))
    layer._hotsplit.counter = counter
    slots = torch.full((16,), -1, dtype=torch.int64, device="cuda")
    tokens = inputs["mixed"]
    with set_forward_context(None, config, num_tokens=16, slot_mapping={"a": slots}):
        _forward(layer, tokens)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            replayed = _forward(layer, tokens)
    slots[:3] = torch.arange(3, device="cuda")
    for _ in range(10):
        graph.replay()
    torch.cuda.synchronize()
    live = torch.bincount(tokens[2][:3].flatten(), minlength=experts) * 10
    found["counted"] = bool(torch.equal(counter.counts[0, :-1], live))
    found["replayed"] = float((replayed.float() - wanted["mixed"].float()).norm() / wanted["mixed"].float().norm())
    numbers = [found[name] for name in (*cases, "replayed")]
    found["ok"] = found["counted"] and all(number < BOUND for number in numbers)  # False for NaN
    return found


def release(experts: int) -> dict[str, Any]:
    import torch

    config = _config()
    layer = _layer(config, 1, experts, False)
    seen = []
    for _ in range(10):
        made = _split(layer, experts // 3)
        torch.cuda.synchronize()
        del made
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        seen.append(host_available() / GIB)
    lost = -slope(seen)
    bank = (experts - experts // 3) * CELL / GIB
    return {"ok": lost < bank / 20, "lost_gib_per_layer": lost, "cold_bank_gib": bank, "available_gib": seen}


def serve(model: str) -> dict[str, Any]:
    from vllm import LLM, SamplingParams

    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        experts = json.load(file)["n_routed_experts"]
    with tempfile.TemporaryDirectory() as folder:
        counts = os.path.join(folder, "counts.json")
        rows = {str(layer): [expert % 7 + 1 for expert in range(experts)] for layer in range(1, 4)}
        with open(counts, "w", encoding="utf-8") as file:
            json.dump({"train": {"decode": rows}}, file)
        os.environ.update(HOTSPLIT_COUNTS=counts, HOTSPLIT_HOT_GIB="8", VLLM_USE_DEEP_GEMM="0")
        server = LLM(
            model=model, load_format="dummy", skip_tokenizer_init=True, trust_remote_code=True, max_model_len=2048,
            max_num_seqs=4, hf_overrides={"num_hidden_layers": 4}, moe_backend="marlin", offload_backend="uva",
            cpu_offload_gb=10, cpu_offload_params={"routed_experts.w13_weight", "routed_experts.w2_weight"},
        )  # fmt: skip
        made = server.generate({"prompt_token_ids": [1, 2, 3]}, SamplingParams(max_tokens=8, detokenize=False))
    return {"ok": len(made[0].outputs[0].token_ids) == 8, "log": "the hotsplit lines are on stderr and stdout above"}


CHECKS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "repack": repack, "pins": pins, "pins-uncached": pins, "banks": banks, "release": release, "serve": serve,
}  # fmt: skip
MARK = "hotsplit-check: "


def _run(name: str, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """One check in an interpreter of its own."""
    command = [sys.executable, os.path.abspath(__file__), "--inner", name, "--experts", str(options.experts)]
    environment = {**os.environ, "VLLM_USE_DEEP_GEMM": "0", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    if name == "pins-uncached":
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "pinned_max_cached_size_mb:1024"
    started = time.monotonic()
    try:
        done = subprocess.run(
            [*command, "--model", options.model], env=environment, stdout=subprocess.PIPE, text=True, timeout=seconds,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"ok": False, "error": f"not done after {seconds:.0f} s"}
    lines = [line.removeprefix(MARK) for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not lines:
        tail = "\n".join(done.stdout.splitlines()[-20:])
        return {"ok": False, "error": f"exit code {done.returncode}; more on stderr", "output": tail}
    result: dict[str, Any] = json.loads(lines[-1])
    return {**result, "seconds": round(time.monotonic() - started, 1)}


def refusal() -> str:
    """Why this machine or Python cannot run the checks, "" if it can."""
    try:
        import torch
    except ImportError:
        return "torch is not installed in this Python: use that of the vLLM image"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    try:
        import vllm._fixpack.hotsplit  # noqa: F401
    except ImportError as error:
        return f"{error}: apply first, apply_all.py --profile gb300-v0.31.0 hotsplit"
    free = torch.cuda.mem_get_info()[0] / GIB
    return "" if free > 30 else f"only {free:.0f} GiB of HBM are free, 30 are needed"


def main(argv: list[str] | None = None) -> int:
    """Run the checks; prints JSON, returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(CHECKS), help="these checks alone")
    parser.add_argument("--experts", type=int, default=64, help="experts of the layer, 16 to 384 (18 MiB each)")
    parser.add_argument("--model", default="", metavar="DIR", help="a folder with MiMo's config.json, for serve")
    parser.add_argument("--seconds", type=float, default=480, help="no check starts, or goes on, after so many")
    parser.add_argument("--inner", choices=list(CHECKS), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if not 16 <= options.experts <= 384:
        parser.error("--experts must be 16 to 384")
    if options.inner:
        result = CHECKS[options.inner](options.model if options.inner == "serve" else options.experts)
        print(MARK + json.dumps(result), flush=True)
        return 0
    why = refusal()
    if why:
        print(f"hotsplit_h200: {why}", file=sys.stderr)
        return 2
    deadline = time.monotonic() + options.seconds
    results = {}
    for name in options.only or CHECKS:
        left = deadline - time.monotonic()
        if name == "serve" and not options.model:
            results[name] = {"skipped": "needs --model"}
        elif left < 10:
            results[name] = {"ok": False, "error": f"no time left of {options.seconds:.0f} s"}
        else:
            results[name] = _run(name, options, left)
    document, code = verdict(results)
    print(json.dumps(document, indent=2))
    return code


if __name__ == "__main__":
    sys.exit(main())
