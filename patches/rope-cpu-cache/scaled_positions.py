t = torch.arange(max_len, dtype=torch.float64)
