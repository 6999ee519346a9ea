"""The lens `circuits`."""
