"""How sparse mechanisms compute: bands, gathered blocks, running sums, merges."""
