"""How far a download is: a callback, so that the front decides how it looks."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class Progress(Protocol):
    """Called now and then with what is being done and how far it is, in bytes; total 0 means unknown."""

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show that `done` of `total` bytes of `what` are there."""
        ...


def silent(what: str, done: int, total: int) -> None:
    """Show nothing: what a library does unless it is asked."""
