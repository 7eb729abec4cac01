from vllm._fixpack.streamer_guard import guard
guard(model_config)
