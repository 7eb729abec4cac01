split = self.__dict__.get("_hotsplit")
if split is not None:
    return split.forward(self, x, topk_weights, topk_ids, shared_experts, shared_experts_input)
