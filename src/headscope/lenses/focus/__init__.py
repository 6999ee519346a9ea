"""The lens `focus`."""
