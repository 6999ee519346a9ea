"""The listener of a download, under the name by which `model` and `api` import it."""

from headscope.progress import Step as Progress
from headscope.progress import silent

__all__ = ["Progress", "silent"]
