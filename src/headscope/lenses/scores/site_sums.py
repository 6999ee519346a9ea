"""Sums of one site over all its windows."""

from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.lenses.scores.row_sums import AT
from headscope.maths.gaussians.moments import Moments


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


GROUPS = 8  # groups of windows, each of which is left out once


@dataclass(frozen=True)
class Group:
    """Every eighth window: its sums by position, and the moments of its queries and keys."""

    positions: Positions
    q: Moments
    k: Moments

    def merge(self, other: "Group") -> "Group":
        """Of the windows of both."""
        return Group(self.positions.merge(other.positions), self.q.merge(other.q), self.k.merge(other.k))


@dataclass(frozen=True)
class Groups:
    """Groups of windows, dealt out in the order of the text; fewer than eight where there are fewer windows."""

    windows: int
    members: tuple[Group, ...]

    def merge(self, other: "Groups") -> "Groups":
        """Of both texts, this one's first: the other's windows go on where these end."""
        members = list(self.members)
        for index, group in enumerate(other.members):
            at = (self.windows + index) % GROUPS
            if at < len(members):
                members[at] = members[at].merge(group)
            else:
                members.append(group)
        return Groups(self.windows + other.windows, tuple(members))

    def without(self, left_out: int | None) -> Group:
        """All groups but one, or all."""
        return reduce(Group.merge, [group for index, group in enumerate(self.members) if index != left_out])


@dataclass(frozen=True)
class SiteSums:
    """The sums of one site, window by window, so that merging is exact.

    `largest` holds for each window what `bounds.largest` says of it.
    """

    scale: float
    sums: tuple[Float[Tensor, "_ summed heads"], ...]
    counts: tuple[Float[Tensor, "_ summed heads"], ...]
    largest: tuple[Float[Tensor, "_ 4 heads"], ...]
    q: Moments
    k: Moments
    histogram: Int[Tensor, " bins"]
    groups: Groups | None  # of sites whose positions are split off

    def merge(self, other: "SiteSums") -> "SiteSums":
        """The sums of both texts, this one's windows first."""
        joined = self.groups
        if joined is not None and other.groups is not None:
            joined = joined.merge(other.groups)
        return SiteSums(
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
