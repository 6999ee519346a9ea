"""The lens `scores`."""
