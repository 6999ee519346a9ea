"""What the lens `uniformity` computes from the tokens of each layer, one idea per file."""
