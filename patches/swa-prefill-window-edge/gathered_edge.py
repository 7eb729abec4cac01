invalid_lens_t = context_lens_trimmed - window_size + torch.arange(seq_len, device=device)
