"""The real engine in this process, on the CPU stand-ins: make one, reach its parts, run requests through it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import models


class Parts(NamedTuple):
    core: Any  # vllm.v1.engine.core.EngineCore
    scheduler: Any
    worker: Any  # vllm_gaudi's HPUWorker
    runner: Any  # vllm_gaudi's HPUModelRunner


def make_llm(model: str = "llama", **options: Any) -> Any:
    """A vllm.LLM with a tiny model; `options` override the defaults below."""
    from vllm import LLM
    from vllm.distributed import parallel_state

    if parallel_state._TP is not None and parallel_state._EP is None:
        # The process's first engine made the groups, and for a dense model none of experts; each is this process alone.
        parallel_state._EP = parallel_state._TP
    defaults = {
        "model": models.path(model),
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "enforce_eager": True,
        "max_model_len": 2048,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 512,
        "num_gpu_blocks_override": 64,
        "seed": 0,
    }
    return LLM(**{**defaults, **options})


def keep_float32() -> None:
    """Let later engines of this process compute in 32 bits when that is their dtype; nothing then hides in rounding.

    vllm-gaudi turns float32 into bfloat16.
    """
    import torch
    from vllm.platforms import current_platform
    from vllm_gaudi.v1.worker import hpu_model_runner

    platform = type(current_platform)
    check = platform.check_and_update_config
    if getattr(check, "keeps_float32", False):
        return

    def keep(vllm_config: Any) -> None:
        wanted = vllm_config.model_config and vllm_config.model_config.dtype
        check(vllm_config)
        if wanted is torch.float32:
            vllm_config.model_config.dtype = wanted

    keep.keeps_float32 = True  # type: ignore[attr-defined]
    platform.check_and_update_config = staticmethod(keep)
    hpu_model_runner.HPU_TORCH_DTYPE_TO_STR_DTYPE[torch.float32] = "auto"  # vLLM knows no KV cache of that name


def parts(llm: Any) -> Parts:
    """The engine's core, scheduler, worker and model runner."""
    core = llm.llm_engine.engine_core.engine_core
    worker = core.model_executor.driver_worker.worker
    return Parts(core, core.scheduler, worker, worker.model_runner)


def sampling(**options: Any) -> Any:
    """SamplingParams: greedy, six tokens, never stopped by EOS; `options` override."""
    from vllm import SamplingParams

    defaults = {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True, "detokenize": False}
    return SamplingParams(**{**defaults, **options})


def generate(llm: Any, prompts: Sequence[Sequence[int]], params: Any) -> list[list[int]]:
    """The generated tokens of each prompt; `params` is one SamplingParams or one per prompt."""
    outputs = llm.generate([{"prompt_token_ids": list(p)} for p in prompts], params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def prompt(length: int, seed: int = 0) -> list[int]:
    """Token ids between 3 and 502; other seeds give other first tokens."""
    return [(7 * seed + 3 * j + j * j) % 500 + 3 for j in range(length)]
