from vllm._fixpack.offload_entries import check_model
check_model()
