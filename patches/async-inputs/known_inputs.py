if num_tokens == 1:
    # What the host knows, for decodes that the last step did not sample; the rest is overwritten on the device.
    self.input_ids_hpu[:num_decodes].copy_(token_ids_device[:num_decodes].view(-1))
