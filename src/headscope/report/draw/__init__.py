"""Draws figures with matplotlib: one file per kind of figure."""
