"""Pure functions on tensors: the mathematics, knowing no model."""
