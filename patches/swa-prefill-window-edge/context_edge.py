invalid_lens_t = context_lens_t - window_size + torch.arange(seq_len, device=device)
