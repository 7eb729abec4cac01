from vllm._fixpack.known_ids import decode_known
return [decode_known(tokenizer, tid) for tid in token_ids]
