"""Refuse to stream a MiMo-V2 checkpoint with fused FP8 projections unless that is known to be right and asked for.

The streamer delivers the tensors of several files in the order in which they were requested, not layer by layer, so the
weight and the scale of a fused qkv_proj may come far apart.  A vLLM that forgets the half that waits leaves the
projection at zero, without a word.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from vllm.logger import init_logger

logger = init_logger(__name__)

ALLOW = "FIXPACK_ALLOW_STREAMER"
ARCHITECTURES = {"MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM", "MiMoV2OmniForCausalLM"}
_KEPT = "_pending_fp8_qkv_proj"  # where upstream, and the fix fused-qkv-pairing, keep what waits


def guard(model_config: Any) -> None:
    """Return if the streamer may load this model.

    It may if the model has no fused FP8 projections; or if this vLLM pairs their halves in any order, and the operator
    has set FIXPACK_ALLOW_STREAMER=1.

    :param model_config: vLLM's ModelConfig.
    :raises ValueError: if it may not, or if the variable has another value.
    """
    affected = sorted(ARCHITECTURES & _architectures(model_config))
    if not affected or not _is_fp8(model_config):
        return
    allowed, pairs = _allowed(), pairs_in_any_order()
    if allowed and pairs:
        logger.warning("%s is set: %s is loaded with runai_streamer.", ALLOW, affected[0])
        return
    message = (
        f"{affected[0]} with fused FP8 qkv_proj weights is not loaded with the streamer (--load-format runai_streamer, "
        "which vLLM also chooses by itself if the model is given as an object-store address): its order of weights can "
        "separate the two halves of a projection, and the qkv_proj is zero then, so that the model answers in fluent "
        "nonsense. Drop --load-format runai_streamer and load from a local folder."
    )
    if allowed:
        message += f" {ALLOW}=1 does not help: this vLLM does not keep a half that waits. Apply fused-qkv-pairing."
    elif pairs:
        message += f" This vLLM keeps a half that waits; to use the streamer nevertheless, set {ALLOW}=1."
    raise ValueError(message)


def pairs_in_any_order() -> bool:
    """Whether the model's loading code, as it is imported here, keeps what waits with the model."""
    from vllm.model_executor.models.mimo_v2 import MiMoV2Model

    code = MiMoV2Model.load_weights.__code__
    return _KEPT in code.co_consts or _KEPT in code.co_names


def _allowed() -> bool:
    value = os.environ.get(ALLOW, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{ALLOW} is {value!r}; it must be 1, 0 or not set")
    return value == "1"


def _architectures(model_config: Any) -> set[str]:
    return set(getattr(model_config.hf_config, "architectures", None) or ())


def _is_fp8(model_config: Any) -> bool:
    """Whether the configuration, or its text model's, says so; a dict or an object, as transformers gives it."""
    for config in (model_config.hf_config, getattr(model_config.hf_config, "text_config", None)):
        found = getattr(config, "quantization_config", None)
        method = found.get("quant_method") if isinstance(found, Mapping) else getattr(found, "quant_method", None)
        if str(getattr(method, "value", method)).lower() == "fp8":
            return True
    return False
