"" if raw is None else _restore_leading_spaces(raw, tokenizer.decode([tid]) or "", marker)
