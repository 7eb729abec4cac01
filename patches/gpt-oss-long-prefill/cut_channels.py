x = self.experts(hidden_states=x, router_logits=g)[..., : self.hidden_size]
