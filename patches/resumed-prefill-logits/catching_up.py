is_prompt = is_prompt or num_computed_tokens + num_scheduled_tokens < int(self.input_batch.num_tokens_no_spec[req_idx])
