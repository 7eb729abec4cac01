from vllm._fixpack import hotsplit

hotsplit.before_load(vllm_config, model_config)
