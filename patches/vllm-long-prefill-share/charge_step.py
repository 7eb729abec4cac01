if (long_share := getattr(self, "_long_prefill_share", None)) is not None:
    long_share.completed(self, scheduler_output)
