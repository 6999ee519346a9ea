"""Gaussian vectors: moments, information, and their image under attention."""
