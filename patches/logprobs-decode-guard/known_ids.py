"""Ask a tokenizer only for token ids that it has.

The Rust tokenizers take unsigned 32-bit ids: a negative one, or one beyond, raises.  One of those in a single row of
logprobs would end the task that delivers all requests' outputs, and with it the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm.logger import init_logger

logger = init_logger(__name__)
_IDS = "_fixpack_vocabulary_ids"


def is_known(tokenizer: Any, token_id: int) -> bool:
    """Whether the tokenizer can be asked for this id.

    Ids below ``len(tokenizer)`` are, as in vLLM's incremental detokenizer.  A vocabulary with gaps has ids beyond its
    length; those are looked up.
    """
    if 0 <= token_id < len(tokenizer):
        return True
    return 0 <= token_id <= getattr(tokenizer, "max_token_id", -1) and token_id in _ids(tokenizer)


def decode_known(tokenizer: Any, token_id: int) -> str:
    """The text of one id; "" where there is none."""
    if not is_known(tokenizer, token_id):
        _warn()
        return ""
    return tokenizer.decode([token_id]) or ""


def known_pieces(tokenizer: Any, token_ids: Sequence[int]) -> list[str | None]:
    """The vocabulary's own piece for each id; None where there is none."""
    if all(is_known(tokenizer, token_id) for token_id in token_ids):
        pieces: list[str | None] = tokenizer.convert_ids_to_tokens(token_ids)
        return pieces
    _warn()
    return [tokenizer.convert_ids_to_tokens([token_id])[0] if is_known(tokenizer, token_id) else None
            for token_id in token_ids]


def known_context(tokenizer: Any, token_ids: Sequence[int]) -> list[int]:
    """The ids that can be decoded, in their order."""
    return [token_id for token_id in token_ids if is_known(tokenizer, token_id)]


def _warn() -> None:
    logger.warning_once("logprobs name a token id that is not in the vocabulary; its text is left empty")


def _ids(tokenizer: Any) -> frozenset[int]:
    ids: frozenset[int] | None = getattr(tokenizer, _IDS, None)
    if ids is None:
        ids = frozenset(tokenizer.get_vocab().values())
        setattr(tokenizer, _IDS, ids)
    return ids
