"""What the lens `gaussian` computes from the residual stream, one idea per file."""
