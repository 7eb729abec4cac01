"""Fixed requests through the whole stack: LLMEngine, scheduler, vllm-gaudi's runner and attention, a tiny random llama.

``python tests/harness/e2e.py`` (in the environment of env.py) prints one JSON object:

    {"sync": {CASE: {"together": {REQUEST: [tokens]}, "alone": {...}}, ...}, "async": {...}}

"together" runs a case's requests as timed below, "alone" runs those that matter by themselves, in the idle engine.
Before each run the prefix cache is emptied and the KV cache filled with noise, which is what a block's previous owner
leaves behind.
A case whose engine dies has {"error": "..."} in place of "together"; such a case comes last.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, TextIO

import cpuhpu
import torch


class Ask(NamedTuple):
    """One request: when it arrives (engine steps since the case began), its prompt, its sampling parameters."""

    step: int
    prompt: list[int]
    params: dict[str, Any]


SHARED = cpuhpu.prompt(256, 50)
LONG = cpuhpu.prompt(600, 20)


def _company(count: int, leave_after: int) -> dict[str, Ask]:
    """Short requests; all but the last leave after some tokens, so that their rows become free."""
    return {
        f"D{index}": Ask(0, cpuhpu.prompt(20, index), {"max_tokens": leave_after if index < count - 1 else 12})
        for index in range(count)
    }


def _behind_a_prompt(p0: dict[str, Any], p1: dict[str, Any]) -> dict[str, Ask]:
    """P0 becomes a decode while P1, in the row before it, is still a chunked prompt."""
    return {
        "D": Ask(0, cpuhpu.prompt(20, 1), {"max_tokens": 12}),
        "X": Ask(0, cpuhpu.prompt(20, 2), {"max_tokens": 1}),
        "P0": Ask(0, cpuhpu.prompt(700, 3), {"max_tokens": 8, **p0}),
        "P1": Ask(1, cpuhpu.prompt(950, 4), {"max_tokens": 8, **p1}),
    }


# No trigger: the long prompt comes last, so that no request decodes in a row behind it, and all have their own prefix.
PLAIN = {
    "seeded": Ask(0, cpuhpu.prompt(130, 21), {"max_tokens": 12, "temperature": 0.8, "seed": 11, "top_k": 20}),
    "penalised": Ask(0, cpuhpu.prompt(250, 22), {"max_tokens": 12, "repetition_penalty": 1.2}),
    "top-p": Ask(0, cpuhpu.prompt(64, 23), {"max_tokens": 12, "temperature": 1.1, "seed": 5, "top_p": 0.9}),
    "greedy, in chunks": Ask(0, LONG, {"max_tokens": 12}),
    "cached prefix": Ask(9, LONG[:512] + cpuhpu.prompt(30, 24), {"max_tokens": 8}),
}
CASES: dict[str, dict[str, Ask]] = {
    "plain": PLAIN,
    "shared prefix": {
        **_company(3, leave_after=2),
        "Writer": Ask(2, SHARED + cpuhpu.prompt(40, 51), {"max_tokens": 8}),
        "Reader": Ask(2, SHARED + cpuhpu.prompt(20, 52), {"max_tokens": 8}),
    },
    "temperatures": _behind_a_prompt({}, {"temperature": 2.0, "seed": 3}),
    "penalties": _behind_a_prompt({"repetition_penalty": 1.8}, {}),
    "allowed tokens": _behind_a_prompt({"allowed_token_ids": [10, 11, 12]}, {"allowed_token_ids": [20, 21, 22]}),
    "logit bias": {
        "A": Ask(0, cpuhpu.prompt(40, 30), {"max_tokens": 6}),
        "B": Ask(0, cpuhpu.prompt(40, 31), {"max_tokens": 6, "logit_bias": {7: 100.0}}),
        "C": Ask(2, cpuhpu.prompt(40, 32), {"max_tokens": 6, "logit_bias": {9: 100.0}}),
    },
    "bad words": {
        "A": Ask(0, cpuhpu.prompt(40, 33), {"max_tokens": 6}),
        "B": Ask(0, cpuhpu.prompt(40, 34), {"max_tokens": 6, "bad": [[token] for token in range(3, 500, 2)]}),
    },
}


def _params(options: dict[str, Any]) -> Any:
    options = dict(options)
    bad = options.pop("bad", None)
    params = cpuhpu.sampling(**options)
    if bad is not None:
        params._bad_words_token_ids = bad  # what a tokenizer would make of `bad_words`
    return params


def run(llm: Any, asks: dict[str, Ask], only: Sequence[str] = ()) -> dict[str, list[int]]:
    """The tokens of each request (`only` these, all by default), in an engine that has nothing cached."""
    llm.reset_prefix_cache()
    noise = torch.Generator().manual_seed(1)
    for layer in cpuhpu.parts(llm).runner.kv_caches:
        for cache in layer:
            if isinstance(cache, torch.Tensor):
                cache.copy_(torch.randn(cache.shape, generator=noise))
    engine = llm.llm_engine
    waiting = {name: ask for name, ask in asks.items() if not only or name in only}
    tokens: dict[str, list[int]] = {}
    step = 0
    while waiting or engine.has_unfinished_requests():
        for name in [name for name, ask in waiting.items() if only or ask.step <= step]:
            ask = waiting.pop(name)
            engine.add_request(name, {"prompt_token_ids": ask.prompt}, _params(ask.params))
        for output in engine.step():
            tokens[output.request_id] = list(output.outputs[0].token_ids)
        step += 1
    return dict(sorted(tokens.items()))


def main(out: TextIO) -> int:
    result: dict[str, dict[str, Any]] = {}
    for kind in ("sync", "async"):
        llm = cpuhpu.make_llm(
            async_scheduling=kind == "async",
            enable_prefix_caching=True,
            max_num_seqs=8,
            max_num_batched_tokens=768,
            long_prefill_token_threshold=256,
        )
        found = result[kind] = {}
        for case, asks in CASES.items():
            found[case] = {"alone": {name: run(llm, asks, [name])[name] for name in asks if name[0] not in "DX"}}
            try:
                found[case]["together"] = run(llm, asks)
            except IndexError as error:
                found[case]["error"] = f"IndexError: {error}"
    json.dump(result, out)
    return 0


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w") as kept:
        os.dup2(2, 1)  # the engine logs to standard output, which is the result's
        sys.exit(main(kept))
