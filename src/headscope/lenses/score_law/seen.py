"""What is kept of one site over all its windows."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.lenses.score_law.sums import AT
from headscope.maths.moments import Moments


@dataclass(frozen=True)
class Positions:
    """Sums of q and of k at each position over windows, and how many windows reach it."""

    q: Float[Tensor, "n heads d"]
    k: Float[Tensor, "n kv_heads d"]
    count: Float[Tensor, " n"]

    def merge(self, other: "Positions") -> "Positions":
        """Of the windows of both."""
        long, short = (self, other) if len(self.count) >= len(other.count) else (other, self)
        n = len(short.count)

        def added(a: Tensor, b: Tensor) -> Tensor:
            return torch.cat((a[:n] + b, a[n:]))

        return Positions(added(long.q, short.q), added(long.k, short.k), added(long.count, short.count))


@dataclass(frozen=True)
class Seen:
    """What one site has shown; sums are kept apart by window, so that merging is exact.

    `largest` holds for each window what `bounds.largest` says of it.
    """

    scale: float
    sums: tuple[Float[Tensor, "_ summed heads"], ...]
    counts: tuple[Float[Tensor, "_ summed heads"], ...]
    largest: tuple[Float[Tensor, "_ 4 heads"], ...]
    q: Moments
    k: Moments
    histogram: Int[Tensor, " bins"]
    positions: Positions | None

    def merge(self, other: "Seen") -> "Seen":
        """What both have seen, this one's windows first."""
        joined = self.positions
        if joined is not None and other.positions is not None:
            joined = joined.merge(other.positions)
        return Seen(
            self.scale,
            (*self.sums, *other.sums),
            (*self.counts, *other.counts),
            (*self.largest, *other.largest),
            self.q.merge(other.q),
            self.k.merge(other.k),
            self.histogram + other.histogram,
            joined,
        )

    @property
    def has_rows(self) -> bool:
        """Whether any row counted."""
        return bool((torch.cat(self.counts)[:, AT["first"]] > 0).any())
