"""The lens `maps`."""
