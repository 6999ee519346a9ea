"""What a search makes cheap: the prefill, head by head, or the cache, kv group by kv group.

The heads of a kv group share keys and values, and a key can go only when none of them reads it any more: so for the
cache they move together, and only mechanisms that let keys go are candidates.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from headscope.core import Site
from headscope.experiments.swap.candidates import (
    Candidate,
    cache_candidates,
    cached_numbers,
    candidates,
    full_pairs,
)
from headscope.experiments.swap.settings import Goal

Unit = tuple[int, ...]  # heads of a site that get the same mechanism


class Aim(ABC):
    """The heads that move together, what they may attend through, and what that spends."""

    @abstractmethod
    def units(self, site: Site) -> tuple[Unit, ...]:
        """The heads that move together."""

    @abstractmethod
    def candidates(self, site: Site, searched: int, target: int, named: Sequence[str] = ()) -> tuple[Candidate, ...]:
        """What they may attend through, the cheapest first, with what a unit then spends at `target` tokens."""

    @abstractmethod
    def full(self, site: Site, target: int) -> float:
        """What a unit spends without a plan."""


class Prefill(Aim):
    """Pairs of queries and keys, head by head."""

    def units(self, site: Site) -> tuple[Unit, ...]:
        """Every head alone."""
        return tuple((head,) for head in range(site.n_heads))

    def candidates(self, site: Site, searched: int, target: int, named: Sequence[str] = ()) -> tuple[Candidate, ...]:
        """Bands with the first token, and the named mechanisms."""
        return candidates(site, searched, target, named)

    def full(self, site: Site, target: int) -> float:
        """All pairs."""
        return full_pairs(site, target)


class Cache(Aim):
    """Numbers that the cache holds, kv group by kv group."""

    def units(self, site: Site) -> tuple[Unit, ...]:
        """The heads that share keys and values."""
        size = site.n_heads // site.n_kv_heads
        return tuple(tuple(range(start, start + size)) for start in range(0, site.n_heads, size))

    def candidates(self, site: Site, searched: int, target: int, named: Sequence[str] = ()) -> tuple[Candidate, ...]:
        """Bands with the first token, and the named mechanisms."""
        return cache_candidates(site, searched, target, named)

    def full(self, site: Site, target: int) -> float:
        """All keys and values."""
        return cached_numbers(site, target)


AIMS: Mapping[Goal, Aim] = {Goal.PREFILL: Prefill(), Goal.CACHE: Cache()}
