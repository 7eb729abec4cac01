t = torch.arange(self.max_position_embeddings, dtype=torch.float64)
