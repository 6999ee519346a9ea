"""How far a long piece of work is, told to whoever listens.

The front decides how it looks. There is one listener, in two spellings. Work of many steps (`hs.measure`,
`hs.intervene`, `hs.fewshot`) takes a `Progress`, an object with the method `step`. Work of one step (`hs.open`,
`hs.text`, `hs.look`) takes a `Step`, any function that can be called as that method can; the bound method
`progress.step` is one.
"""

from typing import Protocol, runtime_checkable


@runtime_checkable
class Step(Protocol):
    """A function called now and then with what is being done and how far it is."""

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show that `done` of `total` parts of `what` are finished.

        Bytes in a download, total 0 where unknown.
        """
        ...


@runtime_checkable
class Progress(Protocol):
    """An object that hears of every step.

    The command line draws a bar on standard error.
    """

    def step(self, what: str, done: int, total: int) -> None:
        """Show that `done` of `total` parts of `what` are finished."""
        ...


class Silent:
    """A listener that shows nothing: what a library does unless it is asked."""

    def step(self, what: str, done: int, total: int) -> None:
        """Ignore the step."""


silent = Silent().step
