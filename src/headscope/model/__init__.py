"""Real checkpoints: find, open, probe, run, change. Knows no mathematics beyond attention itself.

The names below are fetched when they are first used: the formats of checkpoints are listed without loading torch.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "Check": "verify",
    "Look": "look",
    "Model": "model",
    "Perplexity": "language",
    "Session": "session.session",
    "look": "look",
    "open_model": "model",
    "open_weights": "model",
    "verify": "verify",
}


class _Package(ModuleType):
    """`headscope.model` as a module whose names are fetched when first used.

    `look` and `verify` are functions here and files on disk. Python binds a file's module to its package when it is
    imported; that binding is turned away, so that the names are functions in any order of imports.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in _HOMES):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        self.__dict__[name] = value
        return value


sys.modules[__name__].__class__ = _Package
