"""Real checkpoints: find, open, probe, run and change them.

This package knows no mathematics beyond attention itself.
"""

from headscope.model.language import Perplexity
from headscope.model.look import Look, look
from headscope.model.model import Model, open_model, open_weights
from headscope.model.session.session import Session
from headscope.model.verify import Check, verify

__all__ = [
    "Check",
    "Look",
    "Model",
    "Perplexity",
    "Session",
    "look",
    "open_model",
    "open_weights",
    "verify",
]
