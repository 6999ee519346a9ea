"""Where batches come from: deterministic sequences with random access."""
