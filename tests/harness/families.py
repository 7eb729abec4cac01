"""Tiny random models of each family through vllm-gaudi's own runner, beside transformers in float32, same weights.

``python tests/harness/families.py NAME:DTYPE ...`` (in the environment of env.py) prints one JSON object:

    {"llama:float32": [{"prompt": 900, "tokens": [...], "off": [...], "behind": [...]}, ...], ...}

one entry per prompt: the tokens that greedy decoding gave; how far each one's log-probability is from the reference's;
and how far, in the reference, it is behind the best token (0.0 where it is the best).  The reference reads the prompt
and the engine's tokens in one pass.  A model whose engine raises has {"error": "..."}, and must come last;
models with experts come first, because a process whose first engine has none makes no process group for them.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, TextIO

import cpuhpu
import models
import torch

LENGTHS = (5, 100, 130, 257, 600, 900)  # below a block and window of 128, into the next one, and beyond several
TOKENS = 40


def run(name: str, dtype: str) -> list[dict[str, Any]]:
    """The prompts together in one engine, and each against the reference."""
    prompts = [cpuhpu.prompt(length, seed) for seed, length in enumerate(LENGTHS)]
    # gpt-oss in whole prompts: in chunks, its window is one token longer at the edge (swa-prefill-window-edge, opt-in)
    budget = 2048 if name == "gpt_oss" else 512
    llm = cpuhpu.make_llm(name, dtype=dtype, max_num_batched_tokens=budget, enable_prefix_caching=False)
    params = cpuhpu.sampling(max_tokens=TOKENS, logprobs=0)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    return [_compare(name, prompt, output.outputs[0]) for prompt, output in zip(prompts, outputs, strict=True)]


def _compare(name: str, prompt: list[int], output: Any) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        models.path(name), dtype=torch.float32, attn_implementation="eager").eval()
    tokens = list(output.token_ids)
    with torch.no_grad():
        right = torch.log_softmax(model(torch.tensor([prompt + tokens])).logits[0].float(), -1)[len(prompt) - 1 : -1]
    off, behind = [], []
    for place, token in enumerate(tokens):
        off.append(abs(output.logprobs[place][token].logprob - right[place, token].item()))
        behind.append((right[place].max() - right[place, token]).item())
    return {"prompt": len(prompt), "tokens": tokens, "off": off, "behind": behind}


def main(arguments: list[str], out: TextIO) -> int:
    cpuhpu.keep_float32()
    found: dict[str, Any] = {}
    for argument in arguments:
        name, dtype = argument.split(":")
        try:
            found[argument] = run(name, dtype)
        except RuntimeError as error:
            found[argument] = {"error": f"RuntimeError: {error}"}
    json.dump(found, out)
    return 0


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w") as kept:
        os.dup2(2, 1)  # the engine logs to standard output, which is the result's
        raise SystemExit(main(sys.argv[1:], kept))
