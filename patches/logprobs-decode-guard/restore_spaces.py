"" if raw is None else _restore_leading_spaces(raw, decode_known(tokenizer, tid), marker)
