from vllm_gaudi._fixpack.decode_window import mark_heads
mark_heads(block_tables, block_usage)
