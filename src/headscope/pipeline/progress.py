"""Progress: how a long run tells what it is doing, without knowing who listens."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class Progress(Protocol):
    """Told about every step; the command line draws a bar on standard error."""

    def step(self, what: str, done: int, total: int) -> None:
        """`done` of `total` parts of what `what` names are finished."""
        ...


class Silent:
    """Listens to nothing."""

    def step(self, what: str, done: int, total: int) -> None:
        """Ignore the step."""
