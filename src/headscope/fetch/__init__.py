"""Fetches packages: runs the client of an index, checks its file, caches it.

Models and texts arrive the same way, so this package serves both.
"""
