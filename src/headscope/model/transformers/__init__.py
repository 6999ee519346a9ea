"""The transformers library: its classes, its attention interface, its habits.

Nothing else knows it.
"""
