"""What the lens `transport` computes, one idea per file."""
