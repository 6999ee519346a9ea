"""Checkpoint formats: what is in the files, checked before anything trusts it."""
