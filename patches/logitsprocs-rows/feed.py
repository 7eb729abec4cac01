from vllm_gaudi._fixpack.logits_rows import feed
feed(sampling_metadata.logitsprocs, req_id_output_token_ids_lst, self.requests)
