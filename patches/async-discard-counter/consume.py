if request.async_tokens_to_discard > 0:
    request.async_tokens_to_discard -= 1
