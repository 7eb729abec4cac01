from vllm._fixpack.known_ids import decode_known
token_str = decode_known(tokenizer, token_id)
