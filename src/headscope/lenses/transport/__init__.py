"""The lens `transport`."""
