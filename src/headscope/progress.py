"""The progress of long work, reported to a listener.

The front end decides how it looks. A listener has two forms. Work of many steps (`hs.measure`, `hs.intervene`,
`hs.fewshot`) takes a `Progress`, an object with the method `step`. Work of one step (`hs.open`, `hs.text`, `hs.look`)
takes a `Step`, any function with the signature of that method; the bound method `progress.step` is one.
"""

from typing import Protocol, runtime_checkable


@runtime_checkable
class Step(Protocol):
    """A function that is called repeatedly with the current task and its progress."""

    def __call__(self, task: str, done: int, total: int, /) -> None:
        """Show that `done` of `total` parts of `task` are finished.

        Parts are bytes in a download; `total` is 0 where unknown.
        """
        ...


@runtime_checkable
class Progress(Protocol):
    """An object that receives every step.

    The command line draws a bar on standard error.
    """

    def step(self, task: str, done: int, total: int, /) -> None:
        """Show that `done` of `total` parts of `task` are finished."""
        ...


class Silent:
    """A listener that shows nothing, the default of the library."""

    def step(self, task: str, done: int, total: int) -> None:
        """Ignore the step."""


silent = Silent().step
