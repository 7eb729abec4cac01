from vllm._fixpack.long_prefill_share import for_scheduler
self._long_prefill_share = for_scheduler(self)
