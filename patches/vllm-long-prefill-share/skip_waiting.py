if defer_long and long_share.skips(request):
    step_skipped_waiting.prepend_request(request_queue.pop_request())
    continue
