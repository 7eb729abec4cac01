from vllm_gaudi._fixpack.seeded_reset import rewind
rewind(self, scheduler_output)
