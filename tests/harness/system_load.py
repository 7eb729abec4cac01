"""Random workloads for the whole system, and what is right for each request of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import oracle
import torch
from oracle_tokens import BLOCK, MARK, VOCAB

KINDS = ("reads", "parameters", "structured")
LONGEST = 800  # tokens of a request, prompt and output
STOPS = [token for token in range(3, VOCAB - 9) if token % 8 == 0]


class Ask(NamedTuple):
    """One request of a workload."""

    name: str
    step: int  # engine steps before it arrives
    prompt: list[int]
    params: dict[str, Any]  # SamplingParams', and "bad": token lists, as a tokenizer makes them of bad_words
    grammar: int = 0  # 0: none; otherwise the grammar's own number
    abort: int = 0  # the step before which its client goes away; 0: never


class Load(NamedTuple):
    """A workload: the scheduler's limits and the requests."""

    budget: int  # tokens per step
    threshold: int  # tokens per step and prompt; 0: no limit
    blocks: int  # KV blocks that the requests can have
    resets: tuple[int, ...]  # steps before which the prefix cache is reset under the running requests
    asks: tuple[Ask, ...]


def load(kind: str, seed: int, asynchronous: bool) -> Load:
    """The workload of that kind and seed."""
    draw = random.Random(f"{kind} {seed}")
    budget = draw.choice([48, 128, 256, 512])
    shared = [oracle.prompt(draw.choice([BLOCK, 2 * BLOCK, 2 * BLOCK + 40]), 900 + seed + index) for index in range(2)]
    asks = []
    for index in range(draw.randint(3, 8)):
        sizes = [(1, 40), (100, 127), (129, 400), (240, 600)]
        length = draw.choice([draw.randint(*size) for size in sizes])
        prompt = oracle.prompt(length, 13 * seed + index)
        if draw.random() < 0.5:
            prompt = (draw.choice(shared) + prompt)[: max(length, BLOCK + 1)]
        tokens = draw.randint(1, 40)
        params: dict[str, Any] = {"max_tokens": tokens}
        grammar = 0
        if kind == "structured" and draw.random() < 0.4:
            grammar = draw.randint(1, 1000)
        elif kind != "reads":
            params.update(_params(draw, tokens))
        step = draw.choice([0, 0, draw.randint(0, 30)])
        abort = step + draw.randint(1, 40) if draw.random() < 0.15 else 0
        asks.append(Ask(f"R{index}", step, prompt, params, grammar, abort))
    resets = (draw.randint(3, 40),) if draw.random() < 0.15 else ()
    return Load(budget, draw.choice([0, 0, 24, 64]), draw.randint(8, 16), resets, tuple(asks))


def _params(draw: random.Random, tokens: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    style = draw.random()
    if style < 0.25:
        found.update(temperature=draw.choice([0.3, 0.7, 1.5]), top_k=1)
    elif style < 0.45:
        found.update(temperature=draw.choice([0.4, 0.8, 1.2]), top_k=draw.choice([2, 5, 50]))
    elif style < 0.6:
        found.update(temperature=draw.choice([0.8, 1.2]), top_k=draw.choice([5, 50]), seed=draw.randint(1, 99))
    elif style < 0.7:
        found.update(temperature=0.9, top_p=draw.choice([0.5, 0.9]))
    if draw.random() < 0.2:
        found["repetition_penalty"] = draw.choice([1.13, 1.57])
    if draw.random() < 0.15:
        found["frequency_penalty"] = draw.choice([0.37, 1.19])
    if draw.random() < 0.15:
        found["presence_penalty"] = draw.choice([0.41, 1.27])
    if draw.random() < 0.25:
        found["allowed_token_ids"] = list(range(draw.randint(3, 9), 500, draw.choice([5, 7, 11])))
    if draw.random() < 0.2:
        found["bad"] = [[token] for token in range(draw.randint(3, 9), 500, draw.choice([2, 3]))]
    if draw.random() < 0.2:
        found["logit_bias"] = {draw.randint(3, 499): draw.choice([-70.0, 9.3, 70.0]) for _ in range(4)}
    if draw.random() < 0.3:
        found["stop_token_ids"] = STOPS
        found["min_tokens"] = min(draw.choice([0, 1, 5]), tokens)
        if found["min_tokens"] > 1:
            found["allowed_token_ids"] = None  # what is left of both may be nothing
    return found


def scores(read: Sequence[int]) -> torch.Tensor:
    """Logits of which each is another number, and which depend on every token that was read and on its place."""
    value = 0
    for token in read:
        value = (value * 31 + token + 11) % 1_000_003
    return ((torch.arange(VOCAB) ^ (value % VOCAB)) * 167 + value).remainder(VOCAB) / 8.0


def allowed(grammar: int, place: int) -> list[int]:
    """What the grammar allows as the output's token number `place`."""
    return list(range(3 + (grammar * 31 + place * 7) % 17, VOCAB - 9, 17))


def foreseeable(ask: Ask, asynchronous: bool) -> bool:
    """Whether the request's tokens follow from its own prompt and parameters, with every fix applied.

    Not those drawn at random without a seed, and not where upstream's documented limit is met, penalties with
    asynchronous scheduling: the worker does not know on the host what it sampled last, and penalties are computed from
    what it knows.

    Bad words of several tokens, which never match with asynchronous scheduling, are not drawn at all.
    """
    params = ask.params
    if params.get("temperature", 0.0) and params.get("top_k") != 1 and "seed" not in params:
        return False
    return not (asynchronous and any(name.endswith("_penalty") for name in params))


def right(ask: Ask) -> list[int]:
    """The output of a foreseeable request."""
    params, output = ask.params, []  # type: dict[str, Any], list[int]
    seen = torch.zeros(VOCAB)
    seen[torch.tensor(ask.prompt)] = 1
    counts = torch.zeros(VOCAB)
    generator = torch.Generator().manual_seed(params.get("seed", 0))
    while len(output) < params["max_tokens"]:
        logits = scores(ask.prompt + output)
        logits[MARK] = -float("inf")
        only = allowed(ask.grammar, len(output)) if ask.grammar else params.get("allowed_token_ids")
        if only:
            mask = torch.ones(VOCAB, dtype=torch.bool)
            mask[only] = False
            logits[mask] = -float("inf")
        for (token,) in params.get("bad", ()):
            logits[token] = -float("inf")
        if len(output) < params.get("min_tokens", 0):
            logits[params["stop_token_ids"]] = -float("inf")
        for token, bias in (params.get("logit_bias") or {}).items():
            logits[token] += bias
        repetition = torch.where((seen + counts) > 0, params.get("repetition_penalty", 1.0), 1.0)
        logits = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits -= params.get("frequency_penalty", 0.0) * counts
        logits -= params.get("presence_penalty", 0.0) * (counts > 0)
        if "seed" in params:  # vLLM draws by dividing the probabilities by exponentially distributed numbers
            logits /= params["temperature"]
            logits[logits < logits.topk(params["top_k"]).values[-1]] = -float("inf")
            logits = logits.softmax(-1) / torch.empty(VOCAB).exponential_(generator=generator)
        output.append(int(logits.argmax()))
        counts[output[-1]] += 1
        if output[-1] in params.get("stop_token_ids", ()) and len(output) >= params.get("min_tokens", 0):
            break
    return output
