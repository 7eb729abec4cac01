import torch


def is_gqa(q, k):
    return q.dim() == 4 and q.shape[1] != k.shape[1]


def gqa_input_reshape_fwd(q, k, v, attention_mask):
    kv_heads = k.shape[1]
    if attention_mask is not None and attention_mask.dim() == 4:
        attention_mask = attention_mask.unsqueeze(2) if attention_mask.shape[1] in (1, kv_heads) else \
            attention_mask.unflatten(1, (kv_heads, -1))
    return q.unflatten(1, (kv_heads, -1)), k.unsqueeze(2), v.unsqueeze(2), attention_mask


def gqa_output_reshape(t):
    return t.flatten(1, 2)


def attention(q, k, v, mask, is_causal, scale, valid_seq_lengths=None, padding_side="right", window=None, sinks=None):
    """float32 attention; returns (out, row max, 1/row sum of exp)."""
    n, s = q.shape[-2], k.shape[-2]
    scale = q.shape[-1]**-0.5 if scale is None else scale
    scores = (q.float() @ k.float().transpose(-1, -2)) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask.float()
    rows, cols = torch.arange(n, device=q.device).view(-1, 1), torch.arange(s, device=q.device).view(1, -1)
    allowed = torch.ones(n, s, dtype=torch.bool, device=q.device)
    if is_causal:
        allowed &= cols <= rows + (s - n)
    if window is not None and tuple(window) != (-1, -1):
        left, right = window
        if left >= 0:
            allowed &= cols >= rows + (s - n) - left
        if right >= 0:
            allowed &= cols <= rows + (s - n) + right
    if valid_seq_lengths is not None:
        lens = valid_seq_lengths.view(-1, *([1] * (scores.dim() - 1)))
        allowed = allowed & (cols < lens if padding_side == "right" else cols >= s - lens)
    scores = scores.masked_fill(~allowed, float("-inf"))
    m = scores.amax(-1, keepdim=True)
    if sinks is not None:
        sink = sinks.float().reshape(1, -1, 1, 1)
        if scores.dim() == 5:
            sink = sink.unflatten(1, scores.shape[1:3])
        m = torch.maximum(m, sink)
    m = m.clamp_min(torch.finfo(torch.float32).min)
    p = (scores - m).exp()
    total = p.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + (sink - m).exp()
    linv = total.clamp_min(1e-30).reciprocal()
    return (p @ v.float()) * linv, m, linv


class FusedSDPA:
    @staticmethod
    def apply(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, softmax_mode="None",
              recompute=None, valid_seq_lengths=None, padding_side="left", fp8_a=False, fp8_b=False,
              window_size=(-1, -1), sinks=None):
        q, k, v, mask = query, key, value, attn_mask
        gqa = is_gqa(q, k)
        if gqa:
            q, k, v, mask = gqa_input_reshape_fwd(q, k, v, mask)
        out = attention(q, k, v, mask, is_causal, scale, valid_seq_lengths, padding_side, window_size, sinks)[0]
        return (gqa_output_reshape(out) if gqa else out).to(query.dtype)
