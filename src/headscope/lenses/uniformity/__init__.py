"""The lens `uniformity`."""
