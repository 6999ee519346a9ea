"""What the lens `scores` computes from rows of scores and from queries and keys, one idea per file."""
