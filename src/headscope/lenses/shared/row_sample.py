"""A bounded sample of rows of the residual stream that merges exactly.

Windows are drawn by a hash of their tokens: the smallest hashes stay. Within a window anchors stand at equal steps, and
with each anchor the rows that lie at the wanted distances behind it. The more windows are kept, the wider the steps;
wider steps keep a subset of the rows, so any split of the text ends with the same sample.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.core import Site
from headscope.lenses.shared.window_sample import drawn, priority_of


@dataclass(frozen=True)
class Plan:
    """The bounds of a sample: rows per stream, windows, distances, first tokens to skip.

    No window has more than `most` rows: those of one window depend on each other, and more of them tell little more.
    """

    rows: int
    windows: int
    distances: tuple[int, ...]
    skip: int
    most: int = 2**31

    def room(self, windows: int) -> int:
        """The most rows of each window in a sample of this number of windows."""
        return min(self.rows // max(1, windows), self.most)


@dataclass(frozen=True)
class Stream:
    """The kept rows of one stream of one window, and how many tokens the window has there."""

    positions: Int[Tensor, "rows"]
    rows: Float[Tensor, "rows d"]
    length: int

    def thinned(self, plan: Plan, room: int) -> "Stream":
        """The stream with at most `room` rows."""
        if len(self.positions) <= room:
            return self
        positions = kept_positions(plan, self.length, room)
        if len(positions) == len(self.positions):
            return self
        stays = torch.isin(self.positions, torch.tensor(positions))
        return replace(self, positions=self.positions[stays], rows=self.rows[stays])


@dataclass(frozen=True)
class Window:
    """One window of text: its hash, and what is kept of each stream."""

    priority: int
    streams: Mapping[Site, Stream]

    def thinned(self, plan: Plan, room: int) -> "Window":
        """The window with at most `room` rows of each stream."""
        if all(len(stream.positions) <= room for stream in self.streams.values()):
            return self
        return Window(self.priority, {site: stream.thinned(plan, room) for site, stream in self.streams.items()})


@dataclass(frozen=True)
class Sample:
    """The windows kept so far, in the order of the text, out of `seen`."""

    plan: Plan
    windows: tuple[Window, ...] = ()
    seen: int = 0
    _worst: int = field(default=2**64, compare=False)

    def add(self, tokens: Int[Tensor, "n"], streams: Mapping[Site, Float[Tensor, "_ d"]]) -> "Sample":
        """The sample after one more window, whose rows are copied only if it stays."""
        priority = priority_of(tokens)
        if len(self.windows) == self.plan.windows and priority >= self._worst:
            return replace(self, seen=self.seen + 1)
        room = self.plan.room(min(len(self.windows) + 1, self.plan.windows))
        sampled_streams = {site: _sampled(self.plan, stream, room) for site, stream in streams.items()}
        windows = drawn((*self.windows, Window(priority, sampled_streams)), self.plan.windows)
        # Once there are as many windows as may be, one replaces another and the room of the others is as before.
        full = len(self.windows) == self.plan.windows
        return self._of(windows if full else self._thinned(windows), self.seen + 1)

    def merge(self, other: "Sample") -> "Sample":
        """The sample of both texts, this one's first."""
        return self._of(
            self._thinned(drawn((*self.windows, *other.windows), self.plan.windows)), self.seen + other.seen
        )

    def counts(self) -> tuple[int, int]:
        """Rows of a stream in the sample, and in the text by the mean length of its windows."""
        first = [next(iter(window.streams.values())) for window in self.windows]
        sampled_rows = sum(len(stream.positions) for stream in first)
        available_rows = sum(max(stream.length - self.plan.skip, 0) for stream in first)
        return sampled_rows, available_rows * self.seen // max(1, len(first))

    def _thinned(self, windows: tuple[Window, ...]) -> tuple[Window, ...]:
        room = self.plan.room(len(windows))
        return tuple(window.thinned(self.plan, room) for window in windows)

    def _of(self, windows: tuple[Window, ...], window_count: int) -> "Sample":
        return Sample(self.plan, windows, window_count, max((window.priority for window in windows), default=2**64))


def _sampled(plan: Plan, stream: Float[Tensor, "n d"], room: int) -> Stream:
    positions = torch.tensor(kept_positions(plan, len(stream), room), dtype=torch.int64)
    return Stream(positions, stream[positions], len(stream))


@lru_cache(maxsize=1024)
def kept_positions(plan: Plan, length: int, room: int) -> tuple[int, ...]:
    """Anchors and positions behind them, with the smallest step (1, 2, 4, …) that fits."""
    step = 1
    while True:
        anchors = range(plan.skip, length, step)
        candidates = {anchor + distance for anchor in anchors for distance in (0, *plan.distances)}
        positions = tuple(sorted(position for position in candidates if position < length))
        if len(positions) <= room or len(anchors) <= 1:
            return positions
        step *= 2
