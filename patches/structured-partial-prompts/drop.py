if self.use_structured_output and not self.use_async_scheduling:
    from vllm_gaudi._fixpack.partial_prompts import drop_partial
    drop_partial(self.input_batch, pd_info.prompt_req_ids, scheduler_output.num_scheduled_tokens,
                 postprocessed_sampled_token_ids)
