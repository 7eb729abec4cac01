from vllm._fixpack.known_ids import known_context
context_token_ids = known_context(self.tokenizer, context_token_ids)
