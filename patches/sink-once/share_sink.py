# Each block adds the sink to its own sum, and the sums of a sequence's n blocks are added up: n * exp(sink - log n).
copies = block_mapping.float() @ block_mapping.float().sum(0)
sink = (sink.float() - copies.clamp(min=1).log().view(-1, 1, 1, 1)).to(sink.dtype)
