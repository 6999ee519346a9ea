"""Sessions: read and change the attention of a model while it runs."""
