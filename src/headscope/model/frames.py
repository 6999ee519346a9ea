"""What captures and streams collect: one frame per forward, handed over by `take`."""

from collections.abc import Callable
from typing import Generic, TypeVar

from headscope.core.site import Site
from headscope.errors import UsageError

T = TypeVar("T")


class Frames(Generic[T]):
    """Values by site, one dictionary per forward since the last `take`."""

    def __init__(self, new: Callable[[], T]) -> None:
        self._new = new
        self._frames: list[T] = []
        self._open = False

    def begin(self) -> None:
        """A forward begins: what it shows goes into a frame of its own."""
        self._open = False

    def current(self) -> T:
        """The frame of the forward that is running."""
        if not self._open:
            self._frames.append(self._new())
            self._open = True
        return self._frames[-1]

    def take(self) -> T:
        """What the one forward since the last take showed; several forwards want `take_all`."""
        if len(self._frames) != 1:
            raise UsageError(
                f"take() expects one forward since the last take, there were {len(self._frames)}",
                hint="use take_all() for one result per forward (each step of generate is a forward)",
            )
        return self.take_all()[0]

    def take_all(self) -> list[T]:
        """What each forward since the last take showed, in order."""
        taken, self._frames = self._frames, []
        self._open = False
        return taken


SiteMap = dict[Site, T]
