from vllm._fixpack.fused_qkv import check as check_fused_qkv
check_fused_qkv(model)
