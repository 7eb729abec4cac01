indices = torch.cat((token_ids.to(torch.int32), topk_indices.to(torch.int32)), dim=1)
