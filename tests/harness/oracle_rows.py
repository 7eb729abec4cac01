"""What a sampler call was given, row by row, and what a request had asked for."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from oracle_tokens import VOCAB


class Row(NamedTuple):
    """The sampling parameters that one row of a sampler call was given."""

    all_greedy: bool  # of the whole call: temperatures are not looked at
    temperature: float | None
    top_p: float | None
    top_k: int | None
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    prompt: list[int] | None  # the prompt that penalties were computed with; None where there are none
    output: list[int]
    allowed: list[int] | None  # None: everything
    seeded: bool
    bad_words: list[list[int]] | None


class Sampling(NamedTuple):
    """One call of the sampler."""

    owners: list[str | None]
    logits: torch.Tensor
    metadata: Any
    tokens: list[int]
    rows: list[Row]

    def of(self, request: str) -> Row:
        """The parameters of the request's (first) row."""
        return self.rows[self.owners.index(request)]


def wanted(request: Any) -> dict[str, Any]:
    """The parameters that a request asked for, in the form in which a sampler call holds them."""
    params = request.sampling_params
    return {
        "temperature": params.temperature or -1.0,
        "top_p": params.top_p,
        "top_k": params.top_k if 0 < params.top_k < VOCAB else VOCAB,
        "frequency_penalty": params.frequency_penalty,
        "presence_penalty": params.presence_penalty,
        "repetition_penalty": params.repetition_penalty,
        "prompt": list(request.prompt_token_ids),
        "allowed": sorted(params.allowed_token_ids) if params.allowed_token_ids else None,
    }


def given(row: Row) -> dict[str, Any]:
    """The parameters of a row that the sampler really looks at."""
    found: dict[str, Any] = {
        "top_p": 1.0 if row.top_p is None else row.top_p,
        "top_k": VOCAB if row.top_k is None else row.top_k,
        "allowed": row.allowed,
    }
    if not row.all_greedy:
        found["temperature"] = row.temperature
    if row.prompt is not None:
        for name in ("frequency_penalty", "presence_penalty", "repetition_penalty", "prompt"):
            found[name] = getattr(row, name)
    return found


def row_of(metadata: Any, index: int) -> Row:
    def pick(values: Any) -> Any:
        return None if values is None else round(values[index].item(), 6)

    prompt = None
    if not metadata.no_penalties and metadata.prompt_token_ids is not None:
        prompt = [token for token in metadata.prompt_token_ids[index].tolist() if token < VOCAB]
    mask = metadata.allowed_token_ids_mask
    allowed = None
    if mask is not None and bool(mask[index].any()):
        allowed = (~mask[index].cpu()).nonzero().flatten().tolist()
    return Row(
        all_greedy=metadata.all_greedy,
        temperature=pick(metadata.temperature),
        top_p=pick(metadata.top_p),
        top_k=pick(metadata.top_k),
        frequency_penalty=pick(metadata.frequency_penalties),
        presence_penalty=pick(metadata.presence_penalties),
        repetition_penalty=pick(metadata.repetition_penalties),
        prompt=prompt,
        output=list(metadata.output_token_ids[index]),
        allowed=allowed,
        seeded=index in metadata.generators,
        bad_words=metadata.bad_words_token_ids.get(index),
    )
