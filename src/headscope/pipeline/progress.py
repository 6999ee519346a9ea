"""The listener of a run, under the name by which `api` imports it."""

from headscope.progress import Progress, Silent

__all__ = ["Progress", "Silent"]
