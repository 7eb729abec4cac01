from vllm_gaudi._fixpack.seeded_prompts import note_unfinished
note_unfinished(self, pd_info.prompt_req_ids, scheduler_output.num_scheduled_tokens)
