"""How sparse mechanisms compute: bands, gathered blocks, running sums, and how parts merge."""
