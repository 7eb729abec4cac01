from vllm._fixpack.rank_exception import end_unreported
end_unreported(self.rank, output_rank, method)
