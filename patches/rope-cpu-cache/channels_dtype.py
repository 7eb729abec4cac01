dtype=torch.float64,
