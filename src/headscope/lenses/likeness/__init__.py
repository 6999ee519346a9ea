"""The lens `likeness`."""
