if defer_long and long_share.skips(request):
    skip_request(request_queue)
    continue
