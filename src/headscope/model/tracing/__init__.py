"""Finds the parts of a model by running it on a few tokens, for any family."""
