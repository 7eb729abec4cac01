from vllm._fixpack.offload_entries import Entries
self._fixpack_entries = Entries(self.cpu_offload_params)
