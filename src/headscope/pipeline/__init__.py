"""Runs lenses on a model: one forward per batch and variant for all of them."""

from headscope.pipeline.measure import measure
from headscope.progress import Progress

__all__ = ["Progress", "measure"]
