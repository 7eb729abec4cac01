from vllm._fixpack.rope_table import build_table
short_cache = build_table(
    self._compute_cos_sin_cache, original_max_position_embeddings, short_factor, short_mscale
)
