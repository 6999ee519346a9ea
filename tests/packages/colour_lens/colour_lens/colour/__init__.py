"""The lens `colour`."""
