"""Real checkpoints: find, open, probe, run, change. Knows no mathematics beyond attention itself."""

from headscope.model.opened import Model, open_model, open_weights
from headscope.model.session import Session
from headscope.model.source import sources
from headscope.model.text import Perplexity

__all__ = ["Model", "Perplexity", "Session", "open_model", "open_weights", "sources"]
