torch.arange(0, self.rotary_dim, 2, dtype=torch.float64)
