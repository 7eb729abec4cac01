from vllm._fixpack.long_prefill_settings import is_known
if is_known(env, os.environ):
    continue
