from vllm._fixpack.exact_pin import to_host
cpu_data = to_host(p.data, use_pin_memory)
