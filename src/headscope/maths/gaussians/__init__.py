"""Gaussian vectors: moments, entropy, mutual information, and their image under attention."""
