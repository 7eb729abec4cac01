from vllm._fixpack.known_ids import known_pieces
raw_tokens = known_pieces(tokenizer, token_ids)
