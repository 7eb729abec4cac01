import enum

import torch

from .Fp8FusedSDPA import fp8_fused_sdpa  # noqa: F401
from .FusedSDPA import FusedSDPA  # noqa: F401  the class hides the module of that name, as in the real package


class RotaryPosEmbeddingMode(enum.Enum):
    BLOCKWISE = 0
    PAIRWISE = 1


def apply_rotary_pos_emb(p, cos, sin, position_ids=None, offset=0, mode=RotaryPosEmbeddingMode.BLOCKWISE):
    if position_ids is not None:
        cos, sin = cos[position_ids], sin[position_ids]
    if mode == RotaryPosEmbeddingMode.BLOCKWISE:
        a, b = p.chunk(2, dim=-1)
        rotated = torch.cat((-b, a), dim=-1)
    else:
        a, b = p[..., 0::2], p[..., 1::2]
        rotated = torch.stack((-b, a), dim=-1).flatten(-2)
    return (p * cos + rotated * sin).to(p.dtype)
