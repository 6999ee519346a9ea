"""Matrices: spectra, factored products, and nearest matrices of a structure."""
