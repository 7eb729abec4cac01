"""The environment variables of the long-prefill share, read strictly.

They are not in vLLM's own table, because everything in that table is part of the key of its compile cache; vLLM's check
of unknown variables asks ``is_known`` instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

SHARE = "VLLM_LONG_PREFILL_SHARE"
EXACT = "VLLM_LONG_PREFILL_SHARE_ASYNC"
MIN_TOKENS = "VLLM_LONG_PREFILL_MIN_TOKENS"

#: A larger share would leave a long prompt less than one second in twenty.
MOST = 0.95


class Settings(NamedTuple):
    """What the variables say."""

    share: float = 0.0  # 0: off
    exact: bool = False  # whether steps in flight are foreseen
    min_tokens: int = 65536  # prompts of at least so many tokens are long


def read(environ: Mapping[str, str]) -> Settings:
    """The settings; a variable that is unset or empty has its default.

    Raises ValueError, naming the variable and what it may be, for any other value.
    """
    return Settings(
        _share(environ.get(SHARE, "")), _exact(environ.get(EXACT, "")), _min_tokens(environ.get(MIN_TOKENS, ""))
    )


def is_known(name: str, environ: Mapping[str, str]) -> bool:
    """Whether a variable is one of these.  Raises ValueError if it is, and its value is not allowed."""
    if name not in (SHARE, EXACT, MIN_TOKENS):
        return False
    read({name: environ[name]})
    return True


def _share(text: str) -> float:
    if not text.strip():
        return 0.0
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0.0 <= share < 1.0:  # not a number, too
        raise ValueError(f"{SHARE} is {text!r}, but must be a number from 0 (off) to below 1: the part of their speed "
                         f"that other requests keep while a long prompt is prefilled (above {MOST} counts as {MOST})")
    return min(share, MOST)


def _exact(text: str) -> bool:
    if text.strip() not in ("", "0", "1"):
        raise ValueError(f"{EXACT} is {text!r}, but must be 0 or 1: whether steps in flight are foreseen, so that the "
                         "share is exact with asynchronous scheduling")
    return text.strip() == "1"


def _min_tokens(text: str) -> int:
    if not text.strip():
        return Settings().min_tokens
    if not (text.strip().isascii() and text.strip().isdigit() and int(text) > 0):
        raise ValueError(f"{MIN_TOKENS} is {text!r}, but must be a whole number of at least 1: the tokens from which "
                         "on a prompt is long")
    return int(text)
