# The row that was moved away is free: whoever takes it starts without a restriction.
self.allowed_token_ids_mask_cpu_tensor[last_req_index].fill_(False)
