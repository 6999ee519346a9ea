"""The parts of the lens `embeddings`: what tables of vectors look like, and what their directions mean."""
