if sliding_window and self.fused_scaled_dot_product_attention is not None:
    # Slicing masks only the chunks at the edges, which is right for a causal mask and loses a window.
    self.fused_scaled_dot_product_attention._sliced_module.enable_slicing = False
