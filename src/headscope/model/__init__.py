"""Real checkpoints: find, open, probe, run, change. Knows no mathematics beyond attention itself."""

from headscope.model.opened import Model, open_model, open_weights
from headscope.model.preview import Look, look
from headscope.model.session import Session
from headscope.model.source import sources
from headscope.model.text import Perplexity
from headscope.model.verification import Check, verify

__all__ = [
    "Check",
    "Look",
    "Model",
    "Perplexity",
    "Session",
    "look",
    "open_model",
    "open_weights",
    "sources",
    "verify",
]
