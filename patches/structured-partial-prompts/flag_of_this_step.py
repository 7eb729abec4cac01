# Also read while inputs are prepared: it must be this step's, not the last one's.
self.use_structured_output = grammar_output is not None
