"""Counts of neighbouring tokens that merge exactly and are bounded.

Where there are more different pairs than may be kept, previous tokens are left out by a hash of their number, half of
them at a time. What is left does not depend on how the text was split: a part of it never needs to leave out more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headscope.maths.resampling.grouped_counts import GroupedCounts

# Different pairs that are kept at most; each takes 16 bytes.
MOST = 2**21
_BITS = 32  # a token's number fits


@dataclass(frozen=True)
class Counts:
    """Distinct integers, ascending, and how often each occurs."""

    values: Int[Tensor, " values"]
    counts: Int[Tensor, " values"]

    @classmethod
    def of(cls, numbers: Int[Tensor, " n"]) -> "Counts":
        """The counts of integers in any order."""
        values, counts = torch.unique(numbers, return_counts=True)
        return cls(values, counts)

    def merge(self, other: "Counts") -> "Counts":
        """The counts of both."""
        values, where = torch.unique(torch.cat((self.values, other.values)), return_inverse=True)
        counts = torch.zeros_like(values).index_add(0, where, torch.cat((self.counts, other.counts)))
        return Counts(values, counts)

    def only(self, mask: Bool[Tensor, " values"]) -> "Counts":
        """The counts of the values that the mask selects."""
        return Counts(self.values[mask], self.counts[mask])

    @property
    def total(self) -> int:
        """How many integers were counted."""
        return int(self.counts.sum())


def nothing() -> Counts:
    """The counts of no integer."""
    return Counts(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))


@dataclass(frozen=True)
class Pairs:
    """Pairs of neighbouring tokens, the second ones of all pairs, and how often previous tokens were halved."""

    pairs: Counts
    following: Counts
    halvings: int = 0

    @classmethod
    def empty(cls) -> "Pairs":
        """The counts of no text."""
        return cls(nothing(), nothing())

    def add(self, previous: Int[Tensor, " n"], token: Int[Tensor, " n"]) -> "Pairs":
        """The counts with more pairs of neighbours."""
        return self.merge(Pairs(Counts.of(pair_key(previous, token)), Counts.of(token.to(torch.int64))))

    def merge(self, other: "Pairs") -> "Pairs":
        """The counts of both texts."""
        halvings = max(self.halvings, other.halvings)
        pairs = _still_counted(self.pairs, halvings).merge(_still_counted(other.pairs, halvings))
        while len(pairs.values) > MOST:
            halvings += 1
            pairs = _still_counted(pairs, halvings)
        return replace(self, pairs=pairs, following=self.following.merge(other.following), halvings=halvings)

    def previous(self) -> Counts:
        """How often each counted token is the first of a pair."""
        tokens, where = torch.unique(self.pairs.values >> _BITS, return_inverse=True)
        return Counts(tokens, torch.zeros_like(tokens).index_add(0, where, self.pairs.counts))

    def after(self, tokens: Sequence[int]) -> list[Counts]:
        """What follows each of these tokens."""
        bounds = torch.tensor([[token << _BITS, (token + 1) << _BITS] for token in tokens]).reshape(-1, 2)
        ends = torch.searchsorted(self.pairs.values, bounds).tolist()
        mask = (1 << _BITS) - 1
        return [Counts(self.pairs.values[a:b] & mask, self.pairs.counts[a:b]) for a, b in ends]

    def grouped(self, tokens: Sequence[int]) -> Counts:
        """What follows these tokens, in one list: (index of the token, its continuation) as `pair_key` has them."""
        ascending, group = torch.tensor(tokens).sort()
        previous = self.pairs.values >> _BITS
        where = torch.searchsorted(ascending, previous).clamp_max(len(ascending) - 1)
        listed = ascending[where] == previous
        keys = pair_key(group[where[listed]], self.pairs.values[listed] & ((1 << _BITS) - 1))
        keys, order = keys.sort()
        return Counts(keys, self.pairs.counts[listed][order])


def pair_key(first: Int[Tensor, " n"], second: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """One integer for each pair; they are in the order of the pairs."""
    return (first.to(torch.int64) << _BITS) | second.to(torch.int64)


def grouped_counts(pairs: Counts, groups: int) -> GroupedCounts:
    """The counts of pairs, grouped by the first of each."""
    return GroupedCounts.of(pairs.values >> _BITS, pairs.counts, groups)


def _still_counted(pairs: Counts, halvings: int) -> Counts:
    """The pairs whose previous token is still counted."""
    if not halvings:
        return pairs
    mixed = ((pairs.values >> _BITS) * 0x9E3779B1) & 0xFFFFFFFF
    return pairs.only((mixed >> (32 - halvings)) == 0)
