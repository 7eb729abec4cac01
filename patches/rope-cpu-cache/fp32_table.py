from vllm._fixpack.rope_table import build_table
cache_fp32 = build_table(self._compute_cos_sin_cache)
