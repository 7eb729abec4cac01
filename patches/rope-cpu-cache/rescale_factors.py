rescale_factors = torch.tensor(rescale_factors, dtype=torch.float64)
