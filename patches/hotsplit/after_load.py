from vllm._fixpack import hotsplit

hotsplit.after_load(model, model_config)
