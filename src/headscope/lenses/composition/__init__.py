"""The lens `composition`."""
