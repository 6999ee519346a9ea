"""The lens `gaussian`."""
