"""torch.ops.hpu.*: reference (slow, plain) CPU versions of the Gaudi ops that vllm_gaudi calls."""
import torch
import torch.nn.functional as F

from .hpex.kernels.FusedSDPA import (
    FusedSDPA,  # noqa: F401
    attention,
)

ns = torch.ops.hpu


def _op(fn):
    setattr(ns, fn.__name__, fn)
    return fn


@_op
def cast_to_fp8_v2(input, scale=None, stochastic_rounding=False, is_amax=False, dtype=torch.float8_e5m2,
                   scale_shape=None):
    x = input if scale is None else (input * scale).to(input.dtype)  # scaled in the input's precision, as on Gaudi
    lim = torch.finfo(dtype).max
    return x.clamp(-lim, lim).to(dtype), input.abs().amax()


@_op
def cast_from_fp8(input, scale=None, out_dtype=torch.bfloat16, scale_shape=None):
    x = input.float() if scale is None else input.float() * scale
    return x.to(out_dtype)


@_op
def fp8_gemm_v2(A, trans_A, B, trans_B, D=None, out_dtype=torch.bfloat16, A_scale_inv=None, B_scale_inv=None,
                bias=None, accumulate=False, B_scale_shape=None):
    a = A.float() if A_scale_inv is None else A.float() * A_scale_inv
    b = B.float()
    a = a.transpose(-1, -2) if trans_A else a
    b = b.transpose(-1, -2) if trans_B else b
    if B_scale_inv is not None:
        s = B_scale_inv
        b = b * (s.view(1, -1) if torch.is_tensor(s) and s.numel() > 1 else s)
    out = a @ b
    if bias is not None:
        out = out + bias.float()
    if accumulate and D is not None:
        out = out + D.float()
    return out.to(out_dtype)


def _unpack4(packed):
    """int32 (rows, cols/8) -> (rows, cols) nibbles, lowest first."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=packed.device)
    return ((packed.to(torch.int32).unsqueeze(-1) >> shifts) & 0xF).flatten(-2)


@_op
def convert_from_uint4(qweight, scales, qzeros, dtype, g_idx=None):
    w, z = _unpack4(qweight).float(), _unpack4(qzeros).float()
    if g_idx is not None:
        groups = g_idx.long()
    else:
        groups = torch.arange(w.shape[0], device=w.device) // (w.shape[0] // scales.shape[0])
    return ((w - z[groups]) * scales.float()[groups]).to(dtype)


def _act(name):
    return {"silu": F.silu, "relu": F.relu, "gelu": lambda t: F.gelu(t, approximate="tanh")}[name]


def _moe(x, ids, weights, w12, w3, experts_min, combine, permuted_weights=True):
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for i, (up, down) in enumerate(zip(w12, w3, strict=True)):
        tok, slot = (ids == experts_min + i).nonzero(as_tuple=True)
        if tok.numel() == 0:
            continue
        up, down = up.float(), down.float()
        if not permuted_weights:
            up, down = up.t(), down.t()
        y = combine(i, x[tok].float() @ up.t(), down)
        out.index_add_(0, tok, y * weights[tok, slot].float().unsqueeze(-1))
    return out


def _gated(act):

    def combine(i, h, down):
        gate, up = h.chunk(2, dim=-1)
        return (act(gate) * up) @ down.t()

    return combine


def _bias_gated(b12, b3, alpha, limit):
    """gpt-oss SwiGLU-OAI: interleaved gate/up, clamp, alpha-sigmoid."""

    def combine(i, h, down):
        h = h + b12[i].float()
        gate, up = h[..., 0::2].clamp(max=limit), h[..., 1::2].clamp(-limit, limit)
        return ((up + 1) * gate * torch.sigmoid(alpha * gate)) @ down.t() + b3[i].float()

    return combine


_FP4 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], device="cpu")


def dequant_mxfp4(packed, scale_e8m0, block_size=32):
    """uint8 (rows, cols/2), low nibble first; E8M0 scale per block of columns."""
    p = packed.to(torch.int64)
    w = _FP4.to(p.device)[torch.stack((p & 0xF, p >> 4), dim=-1)].flatten(-2)
    s = torch.exp2(scale_e8m0.float() - 127.0).repeat_interleave(block_size, dim=-1)
    return w * s[..., :w.shape[-1]]


def mixture_of_experts(hidden_states, expert_routing_table, router_weights, w12, w3, permuted_weights=True,
                       activation="silu", experts_min=0, experts_max=8, d_scale_hidden_states=None,
                       d_scale_intermediate_hidden_states=None, d_scale_w12=None, d_scale_w3=None, chunk_size=0,
                       total_experts=0, **ignored):
    x, out_dtype = hidden_states, hidden_states.dtype
    if d_scale_hidden_states is not None:
        x, out_dtype = x.float() * d_scale_hidden_states, router_weights.dtype

    def deq(ws, scales):
        if scales is None:
            return ws
        by_row = [s.float().view(-1, 1) if s.numel() > 1 else s.float() for s in scales]
        return [w.float() * s for w, s in zip(ws, by_row, strict=True)]

    out = _moe(x, expert_routing_table, router_weights, deq(w12, d_scale_w12), deq(w3, d_scale_w3), experts_min,
               _gated(_act(activation)), permuted_weights)
    return out.to(out_dtype)


def _bias_fused_weights(hidden_states, expert_routing_table, router_weights, w12, w3, w12_bias, w3_bias,
                        permuted_weights=True, experts_min=0, experts_max=8, alpha=1.702, limit=7.0, **ignored):
    out = _moe(hidden_states, expert_routing_table, router_weights, w12, w3, experts_min,
               _bias_gated(w12_bias, w3_bias, alpha, limit), permuted_weights)
    return out.to(hidden_states.dtype)


def _mxfp4_fused_weights(hidden_states, expert_routing_table, router_weights, w12, w3, d_scale_w12, d_scale_w3,
                         block_size=32, activation="silu", **kw):
    w12 = [dequant_mxfp4(w, s, block_size) for w, s in zip(w12, d_scale_w12, strict=True)]
    w3 = [dequant_mxfp4(w, s, block_size) for w, s in zip(w3, d_scale_w3, strict=True)]
    return mixture_of_experts(hidden_states, expert_routing_table, router_weights, w12, w3, activation=activation,
                              permuted_weights=kw.get("permuted_weights", True), experts_min=kw.get("experts_min", 0))


def _bias_mxfp4_fused_weights(hidden_states, expert_routing_table, router_weights, w12, w3, w12_bias, w3_bias,
                              d_scale_w12, d_scale_w3, block_size=32, **kw):
    w12 = [dequant_mxfp4(w, s, block_size) for w, s in zip(w12, d_scale_w12, strict=True)]
    w3 = [dequant_mxfp4(w, s, block_size) for w, s in zip(w3, d_scale_w3, strict=True)]
    return _bias_fused_weights(hidden_states, expert_routing_table, router_weights, w12, w3, w12_bias, w3_bias, **kw)


mixture_of_experts.bias_fused_weights = _bias_fused_weights
mixture_of_experts.mxfp4_fused_weights = _mxfp4_fused_weights
mixture_of_experts.bias_mxfp4_fused_weights = _bias_mxfp4_fused_weights
_op(mixture_of_experts)


@_op
def sdpa_recomp_fwd(q, k, v, mask, dropout_p, scale, is_causal, requires_backward=True, softmax_mode="fast",
                    valid_seq_len=None, padding_side="right"):
    return attention(q, k, v, mask, is_causal, scale, valid_seq_len, padding_side)


@_op
def fp8_sdpa_recomp_fwd(
    q, k, v, mask, dropout_p, scale, is_causal, requires_backward, softmax_mode, d_scale_q, d_scale_k, d_scale_v,
    q_scale_s, q_scale_o, d_scale_s, is_amax_s=False, is_amax_o=False, valid_seq_len=None, padding_side="right",
    window_size=(-1, -1), sinks=None,
):
    q, k, v = q.float() * d_scale_q, k.float() * d_scale_k, v.float() * d_scale_v
    out, m, linv = attention(q, k, v, mask, is_causal, scale, valid_seq_len, padding_side, window_size, sinks)
    return out, m, linv / (128.0 if softmax_mode == "fast" else 1.0)  # the kernel scales it, its caller scales back
