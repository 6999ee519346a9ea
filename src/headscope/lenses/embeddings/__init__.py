"""The lens `embeddings`."""
