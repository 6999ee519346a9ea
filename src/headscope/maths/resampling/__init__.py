"""Intervals and tests from the units that were sampled: windows of text, words, pairs of words."""
