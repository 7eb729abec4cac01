from vllm._fixpack.truncated_layers import is_cut_off
if is_cut_off(prefix, params_dict, self.config.num_hidden_layers):
    return True
