bad_words_token_ids={
    # One entry per request: padding rows repeat a request and are left alone.
    row: self.bad_words_token_ids[index]
    for row, index in enumerate(dict.fromkeys(req_indices)) if index in self.bad_words_token_ids
} if self.bad_words_token_ids else {},
