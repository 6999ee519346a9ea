"""The lens `dependence`."""
