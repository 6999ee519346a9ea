"""Sums of attention by role, window by window, so that merging is exact."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.attention.token_repeats import NEAR, repeat_counts
from headscope.lenses.lens import Batch

# Queries of a text count from this place on, so that no two roles mean the same key.
FIRST_QUERY = len(NEAR) + 1


@dataclass(frozen=True)
class Sums:
    """Sums over the counted queries of each window.

    `nulls` are sums over `null_pairs` pairs of query and key, `masses` over `pairs` pairs of `queries` queries.
    """

    masses: Float[Tensor, "windows roles heads"]
    nulls: Float[Tensor, "windows roles heads"]
    queries: Float[Tensor, "windows roles"]
    pairs: Float[Tensor, "windows roles"]
    null_pairs: Float[Tensor, "windows roles"]

    def value(self) -> Float[Tensor, "roles heads"]:
        """The mean mass per query; NaN where there is no query."""
        return self.masses.sum(0) / self.queries.sum(0)[:, None]

    def null(self) -> Float[Tensor, "roles heads"]:
        """The mean null mass of as many pairs per query."""
        pairs_per_query = self.pairs.sum(0) / self.queries.sum(0)
        return self.nulls.sum(0) / self.null_pairs.sum(0)[:, None] * pairs_per_query[:, None]


def joined_sums(parts: Sequence[Sums]) -> Sums:
    """The windows of all parts, in order."""
    names = ("masses", "nulls", "queries", "pairs", "null_pairs")
    return Sums(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})


def made_sums(masses: Float[Tensor, "windows heads queries kinds"], period: int) -> Sums:
    """Sums over the queries of the second half of made windows, in the order of `MADE_ROLES`."""
    *near, after_copy, copy, _, _, itself, first, even = masses.unbind(-1)
    counted = (torch.arange(masses.shape[2]) > period).expand(len(masses), -1)
    return _plain_sums((after_copy, copy, *near, first, itself), even, counted)


def text_sums(batch: Batch, masses: Float[Tensor, "windows heads queries kinds"]) -> Sums:
    """Sums over the queries of windows of text, in the order of `TEXT_ROLES`."""
    *near, _, _, follow, control, itself, first, even = masses.unbind(-1)
    positions = torch.arange(masses.shape[2])
    plain = _plain_sums((*near, first, itself), even, batch.real & (positions >= FIRST_QUERY))
    repeats = _repeat_counts(batch.tokens.numpy().tobytes(), batch.tokens.shape[1])
    counts = torch.where(batch.real[..., None], repeats, 0)
    repeated = counts[..., 0] > 0
    prefix = Sums(
        _summed(follow, repeated)[:, None],
        _summed(control, batch.real)[:, None],
        repeated.sum(-1).double()[:, None],
        counts[..., 0].sum(-1).double()[:, None],
        counts[..., 1].sum(-1).double()[:, None],
    )
    names = ("masses", "nulls", "queries", "pairs", "null_pairs")
    return Sums(**{name: torch.cat([getattr(prefix, name), getattr(plain, name)], 1) for name in names})


@lru_cache(maxsize=4)
def _repeat_counts(tokens: bytes, length: int) -> Int[Tensor, "windows queries 2"]:
    """The counts of a batch, which all sites share."""
    return repeat_counts(torch.frombuffer(bytearray(tokens), dtype=torch.int64).reshape(-1, length))


def _plain_sums(columns: Sequence[Tensor], even: Tensor, counted: Bool[Tensor, "windows queries"]) -> Sums:
    """Sums of one key per query; the null is the weight of one visible key where all have the same."""
    masses = torch.stack([_summed(column, counted) for column in columns], 1)
    share = _summed(even, counted)[:, None].expand_as(masses)
    queries = counted.sum(-1).double()[:, None].expand(-1, len(columns))
    return Sums(masses, share, queries, queries, queries)


def _summed(column: Float[Tensor, "windows heads queries"], counted: Tensor) -> Float[Tensor, "windows heads"]:
    return torch.where(counted[:, None], column.double(), 0.0).sum(-1)
