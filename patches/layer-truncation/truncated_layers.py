"""Tell a layer that a shortened model does not have from one whose weights have the wrong name.

A test of numbers runs the first layers of a checkpoint only, with a smaller ``num_hidden_layers``.  The weights of the
other layers are of no use then; a missing parameter of a layer that the model does have is a mistake.
"""

from __future__ import annotations

import re
from collections.abc import Container

from vllm.logger import init_logger

logger = init_logger(__name__)

_LAYER = re.compile(r"(?:^|\.)layers\.([0-9]+)\.")


def is_cut_off(projection: str, parameters: Container[str], layers: int) -> bool:
    """Whether a fused projection belongs to a layer beyond the model's own.

    :param projection: its name in the model, as "layers.7.self_attn.qkv_proj".
    :param parameters: the names of the model's parameters.
    :param layers: the model's ``num_hidden_layers``.
    :raises ValueError: if the model has the layer, but no such parameter in it.
    """
    if f"{projection}.weight" in parameters:
        return False
    found = _LAYER.search(projection)
    index = int(found.group(1)) if found else -1
    if index >= layers:
        logger.warning_once(
            "The model has num_hidden_layers=%d; the checkpoint's fused qkv_proj of layer %d and later are left out.",
            layers,
            layers,
        )
        return True
    raise ValueError(
        f"The checkpoint holds {projection}.weight, but the model, which has {layers} layers, has no such parameter. "
        "Is the checkpoint of another architecture, or are its weights renamed?"
    )
