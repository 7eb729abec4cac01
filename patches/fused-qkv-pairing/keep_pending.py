pending_fp8_qkv_proj = self.__dict__.setdefault("_pending_fp8_qkv_proj", {})  # a pair may straddle two calls
