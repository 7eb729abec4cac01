from .FusedSDPA import attention, gqa_input_reshape_fwd, gqa_output_reshape, is_gqa


def fp8_fused_sdpa(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, softmax_mode="fast",
                   d_scale_q=1.0, d_scale_k=1.0, d_scale_v=1.0, valid_seq_len=None, seq_padding_type="left", **ignored):
    import torch
    q, k, v = q.float() * d_scale_q, k.float() * d_scale_k, v.float() * d_scale_v
    gqa = is_gqa(q, k)
    if gqa:
        q, k, v, attn_mask = gqa_input_reshape_fwd(q, k, v, attn_mask)
    out, m, linv = attention(q, k, v, attn_mask, is_causal, scale, valid_seq_len, seq_padding_type)
    return tuple((gqa_output_reshape(t) if gqa else t).to(torch.bfloat16) for t in (out, m, linv))
