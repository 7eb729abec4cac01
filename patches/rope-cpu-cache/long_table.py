long_cache = build_table(self._compute_cos_sin_cache, max_position_embeddings, long_factor, long_mscale)
