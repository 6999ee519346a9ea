"""What the lens `dependence` computes from pairs of tokens, one idea per file."""
