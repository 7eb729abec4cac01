self.allowed_token_ids_mask_cpu_tensor[[i1, i2]] = self.allowed_token_ids_mask_cpu_tensor[[i2, i1]]
