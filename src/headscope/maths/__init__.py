"""Pure functions on tensors: the mathematics, without any model."""
