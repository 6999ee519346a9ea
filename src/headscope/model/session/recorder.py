"""What a session records: captures and streams, one frame per forward, handed over by `take`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from torch import Tensor

from headscope.attention.statistics import Request, RowStatistics
from headscope.core.site import Site
from headscope.errors import UsageError
from headscope.model.session.captures import Heads, Quantity

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

    def drain(self) -> T:
        """What the running forward has shown up to now; it goes on, and shows the rest later."""
        frame = self.current()
        self._frames[-1] = self._new()
        return frame

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
        frames, self._frames = self._frames, []
        self._open = False
        return frames


@dataclass
class Capture:
    """Stored tensors: `take()` gives name → site → tensor of the one forward that ran.

    `captures.QUANTITIES` says what each quantity is and which axes its tensor has. The heads axis holds the selected
    heads in order, an axis of key/value heads those that the selected heads read. `places` holds the sites of
    quantities that not every site shows.
    """

    quantities: tuple[Quantity, ...]
    at: dict[Site, Heads]
    places: Mapping[str, frozenset[Site]] = field(default_factory=dict)
    frames: Frames[dict[str, dict[Site, Tensor]]] = field(default_factory=lambda: Frames(dict))

    def drain(self) -> dict[str, dict[Site, Tensor]]:
        """The tensors that the running forward has shown up to now."""
        return self.frames.drain()

    def take(self) -> dict[str, dict[Site, Tensor]]:
        """The tensors of the one forward since the last take."""
        return self.frames.take()

    def take_all(self) -> list[dict[str, dict[Site, Tensor]]]:
        """The tensors of each forward since the last take."""
        return self.frames.take_all()

    def keep(self, quantity: str, site: Site, tensor: Tensor) -> None:
        """Store one tensor of the running forward; it must be the caller's own, not one the model goes on using."""
        self.frames.current().setdefault(quantity, {})[site] = tensor.detach()


@dataclass
class Stream:
    """Row statistics of every call, and those of uniform attention over the same visible keys."""

    request: Request
    at: dict[Site, Heads]
    frames: Frames[tuple[dict[Site, RowStatistics], dict[Site, RowStatistics]]] = field(
        default_factory=lambda: Frames(lambda: ({}, {}))
    )

    def drain(self) -> tuple[dict[Site, RowStatistics], dict[Site, RowStatistics]]:
        """Measured and uniform statistics that the running forward has shown up to now."""
        return self.frames.drain()

    def take(self) -> tuple[dict[Site, RowStatistics], dict[Site, RowStatistics]]:
        """Measured and uniform statistics of the one forward since the last take."""
        return self.frames.take()

    def take_all(self) -> list[tuple[dict[Site, RowStatistics], dict[Site, RowStatistics]]]:
        """Measured and uniform statistics of each forward since the last take."""
        return self.frames.take_all()
