from vllm._fixpack.host_weights import moves
moves(old_param, new_tensor)
