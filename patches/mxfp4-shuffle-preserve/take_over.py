from vllm._fixpack.host_weights import take
if take(old_param, new_tensor, new_tensor_attrs):
    return
