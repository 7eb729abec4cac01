"""Tiny models: a config and random but peaked weights, so that greedy tokens mean something.

``path("llama")`` makes the folder in the harness's cache at first use (no tokenizer: use ``skip_tokenizer_init=True``).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

REVISION = 1  # raise it when a config or the way weights are drawn changes
BASE = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
}
CONFIGS: dict[str, dict[str, object]] = {
    "llama": {**BASE, "architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "qwen2": {**BASE, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen3_moe": {
        **BASE,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    },
    "gpt_oss": {
        **BASE,
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "head_dim": 64,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"],
        "swiglu_limit": 7.0,
        "rope_theta": 150000.0,
        "initial_context_length": 4096,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
}


def path(name: str) -> str:
    """The folder with config.json and model.safetensors of the tiny model `name`; made once, then kept."""
    cache = Path(os.environ["FIXPACK_HARNESS_CACHE"])
    folder = cache / f"{name}-r{REVISION}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.mkdtemp(dir=cache)
        _make(CONFIGS[name], scratch)
        try:
            Path(scratch).rename(folder)
        except OSError:  # another process was quicker
            shutil.rmtree(scratch)
    return str(folder)


def _make(config: dict[str, object], folder: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    (Path(folder) / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, 0.8 / parameter.shape[-1] ** 0.5)
                elif "norm" in name and "weight" in name:
                    parameter.uniform_(0.8, 1.2)
                else:
                    parameter.normal_(0, 0.1)
        model.to(torch.bfloat16).save_pretrained(folder)
