"""The lens `structure`."""
