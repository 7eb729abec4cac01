generators={
    # Padding rows repeat the first request, whose generator must be used once per token.
    row: self.generators[index]
    for row, index in enumerate(dict.fromkeys(req_indices)) if self.generators.get(index, None) is not None
},
