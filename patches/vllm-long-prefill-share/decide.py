long_share = getattr(self, "_long_prefill_share", None)
defer_long = long_share is not None and long_share.defers(self)
