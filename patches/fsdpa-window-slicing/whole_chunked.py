if layer.self_attn.attn.impl.fused_scaled_dot_product_attention is not None:
    layer.self_attn.attn.impl.fused_scaled_dot_product_attention._sliced_module.enable_slicing = False
