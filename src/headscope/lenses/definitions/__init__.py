"""Definitions that are too long to stand beside their lens; they share no code with it."""
