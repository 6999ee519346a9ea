"""The lens `angles`."""
