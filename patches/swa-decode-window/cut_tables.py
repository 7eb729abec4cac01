from vllm_gaudi._fixpack.decode_window import window_tables
window_block_tables = window_tables(block_tables_list, slot_mapping.tolist(), decode_block_size, self.sliding_window)
