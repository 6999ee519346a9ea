"""Intervals and tests from independent units: windows, words, pairs of words."""
