pattern = getattr(text_config, "hybrid_layer_pattern", None)
if pattern and str(getattr(text_config, "model_type", "")).startswith("mimo_v2"):
    return len(set(pattern)) > 1
