if defer_long and long_share.skips(request):
    req_index += 1
    continue
