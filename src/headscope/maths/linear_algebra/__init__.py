"""Matrices: spectra, factored products, and the nearest matrix of a given structure."""
