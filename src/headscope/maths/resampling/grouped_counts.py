r"""Counts of values in many groups at once: entropy, the fewest values for a share, and the share of the likeliest."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.errors import NumericsError


@dataclass(frozen=True)
class GroupedCounts:
    """How often each value occurs in each group, group by group, the largest counts first.

    Values that do not occur have no entry. A group may have none, and its numbers are then 0.
    """

    group: Int[Tensor, " entries"]
    counts: Int[Tensor, " entries"]
    groups: int

    @classmethod
    def of(cls, group: Int[Tensor, " entries"], counts: Int[Tensor, " entries"], groups: int) -> "GroupedCounts":
        """From the group and the count of each value, in any order; counts of 0 are left out."""
        group, counts = group[counts > 0], counts[counts > 0]
        base = int(counts.max()) + 1 if len(counts) else 1
        # Sorting numbers that hold both costs a third of sorting indices.
        keys = (group * base + (base - 1 - counts)).sort().values
        return cls(keys // base, base - 1 - keys % base, groups)

    @cached_property
    def sizes(self) -> Int[Tensor, " groups"]:
        """Different values in each group."""
        return torch.bincount(self.group, minlength=self.groups)

    @cached_property
    def totals(self) -> Float[Tensor, " groups"]:
        """The sum of the counts of each group."""
        return self._sums(self.counts)

    @cached_property
    def running(self) -> Int[Tensor, " entries"]:
        """The sum of the counts of a group up to each entry, with it."""
        sums = torch.cat((torch.zeros(1, dtype=torch.int64), self.counts.cumsum(0)))
        return sums[1:] - sums[self._starts][self.group]

    def carriers(self, share: float) -> Float[Tensor, " groups"]:
        r"""The fewest values that carry a share of each group.

        It is the least k with $\sum_{i \le k} c_{(i)} \ge s\,n$, largest counts first.

        Properties:
            - of n values seen once, ⌈s n⌉  (tested: test_carriers)
        """
        if not 0 < share <= 1:
            raise NumericsError(f"a share lies between 0 and 1, got {share}")
        # Sums of counts are whole numbers and s n is rounded: a little room below the next whole number.
        missing = self.running < share * self.totals[self.group] - 1e-9
        return torch.where(self.totals > 0, self._sums(missing) + 1, 0.0)

    def largest(self, values: int) -> Float[Tensor, " groups"]:
        """The sum of the largest counts of each group, for the given number of values."""
        rank = torch.arange(len(self.group)) - self._starts[self.group]
        return self._sums(torch.where(rank < values, self.counts, 0))

    def carried(self, ranks: Sequence[int]) -> Float[Tensor, "groups ranks"]:
        """The share of the r likeliest values of each group, for each r of `ranks`."""
        sums = torch.cat((self.running, torch.zeros(1, dtype=torch.int64)))
        last = torch.minimum(torch.tensor(ranks), self.sizes[:, None]).clamp_min(1) - 1
        shares = sums[self._starts[:, None] + last] / self.totals[:, None]
        return torch.where(self.totals[:, None] > 0, shares, 0.0)

    def coverage_entropy(self) -> Float[Tensor, " groups"]:
        r"""Entropy of the distribution that produced the counts of each group, in nats.

        Definition:
            As `headscope.maths.resampling.counts.coverage_entropy`.
        Properties:
            - each group by itself gives the same  (tested: test_groups_do_not_mix)
        """
        n, once = self.totals, self._sums(self.counts == 1)
        coverage = 1 - torch.minimum(once, n - 1) / n
        p, draws = self.counts * (coverage / n)[self.group], n[self.group]
        return self._sums(-p * p.log() / (1 - (1 - p) ** draws)) + 0.0

    @cached_property
    def _starts(self) -> Int[Tensor, " groups"]:
        return self.sizes.cumsum(0) - self.sizes

    def _sums(self, x: Tensor) -> Float[Tensor, " groups"]:
        """The sum over each group."""
        # Without any entry, bincount forgets the type of its weights.
        return torch.bincount(self.group, weights=x.to(torch.float64), minlength=self.groups).to(torch.float64)
