positions = mask
mask = positions >= block_usage.unsqueeze(-1)
if is_window_block:
    # A negative usage -h: the window starts inside this block, its first h positions do not count.
    head = block_usage.unsqueeze(-1).neg()
    mask = torch.where(head > 0, positions < head, mask)
