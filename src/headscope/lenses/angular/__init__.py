"""What the lens `angles` is made of."""
