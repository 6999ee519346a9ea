"""The transformers library: its classes, attention interface and habits.

No other part of headscope knows it.
"""
