# A resumed request also computes again what it had generated: its next token comes after all of that.
num_prompt_tokens = max(num_prompt_tokens, self.input_batch.num_tokens_no_spec[batch_idx])
