r"""A band and the pairs outside of it: a few columns, rows or single pairs.

A query attends to the keys of the band and to some more. The band is taken in tiles; the other pairs, with those
that the band already has taken out, are gathered; the parts merge by log-sum-exp (`headscope.attention.sparse.parts`).
So n queries with a band of w keys and s more cost O(n(w + s)).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headscope.attention.call import Call, Output
from headscope.attention.sparse.band import Band, Banded, narrow_band
from headscope.attention.sparse.blocks import origin, real_runs
from headscope.attention.sparse.gathered import Gathered, Group
from headscope.attention.sparse.neighbour_lists import Lists, plan
from headscope.attention.sparse.pair_counts import farthest
from headscope.attention.sparse.parts import attention_over
from headscope.attention.sparse.working_memory import FLOAT, band_bytes, band_is_narrow, flash_bytes, masked_bytes

COLUMN_ROWS = 1024  # queries per block over the gathered columns: the operator likes many
_PER_MERGED_ROW = 4.0  # numbers for each row that is merged: both log-sum-exps, the merged one and the share
GLOBAL_ROWS = 64  # rows per block over all keys, whose mask is as wide as the sequence


@dataclass(frozen=True)
class Outside:
    """The allowed pairs of a call outside of a band, by index."""

    band: Band
    limits: tuple[int | None, int | None]  # left and right, of the call
    sizes: tuple[int, int]  # queries and keys
    first: tuple[int, int]  # the position of the first query and of the first key

    def holds(self, queries: Int[Tensor, "..."], keys: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """True where a pair of indices is visible and not in the band (broadcast)."""
        ahead = queries + self.band.offset - keys
        outside = (ahead > self.band.left) | (ahead < -self.band.right)
        left, right = self.limits
        outside = outside if left is None else outside & (ahead <= left)
        return outside if right is None else outside & (ahead >= -right)

    def runs(self, query: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """The key runs of one query before the band and after it."""
        place, keys, (left, right) = query + self.band.offset, self.sizes[1], self.limits
        first = 0 if left is None else min(max(place - left, 0), keys)
        last = keys if right is None else min(max(place + right + 1, 0), keys)
        before, after = max(place - self.band.left, 0), max(place + self.band.right + 1, 0)
        return (first, min(before, last)), (max(after, first), last)

    def query_indices(self, positions: Sequence[int]) -> Int[Tensor, " some"]:
        """The indices of the positions at which the call has queries."""
        return _inside(positions, self.first[0], self.sizes[0])

    def key_indices(self, positions: Sequence[int]) -> Int[Tensor, " some"]:
        """The indices of the positions at which the call has keys."""
        return _inside(positions, self.first[1], self.sizes[1])


def band_and_rest_bytes(n: int, d: int, left: int | None, right: int | None, columns: int) -> float:
    """The working memory of a band and of columns outside of it.

    A wide band has the memory of its mask.
    """
    ends = farthest(n, left), farthest(n, right)
    if not band_is_narrow(n, sum(ends)):
        return masked_bytes(n, d)
    if not columns:
        return band_bytes(n, d, *ends)
    # The band is done before the columns begin: their output has its own memory and is merged into the rows.
    rounded_rows = n // COLUMN_ROWS * COLUMN_ROWS
    rows = max(rounded_rows, n - rounded_rows)
    merged = FLOAT * float(rows * (d + columns + _PER_MERGED_ROW)) + flash_bytes(min(n, COLUMN_ROWS), columns, d)
    return max(band_bytes(n, d, *ends), merged)


Plans = Callable[[Outside], Sequence[Sequence[Group]]]


def band_and_rest_attention(call: Call, left: int | None, right: int | None, plans: Plans) -> Output | None:
    """Attention over the band and over plans of pairs outside of it.

    It is None where the tiles do not support the call.

    Properties:
        - no pair counts twice, with gradients  (tested: test_parts_equal_the_dense_mask)
    """
    band, first, runs = narrow_band(call.within(left, right)), origin(call), real_runs(call)
    if band is None or first is None or runs is None:
        return None
    outside = Outside(band, (call.left, call.right), (call.q.shape[2], call.k.shape[2]), first)
    gathered_parts = [Gathered(plan, call.scale, call.key_padding) for plan in plans(outside)]
    return Output(*attention_over([Banded(band, runs), *gathered_parts], call.q, call.k, call.v))


@lru_cache(maxsize=8)
def columns(outside: Outside, positions: tuple[int, ...]) -> Sequence[Group]:
    """Every query over the keys at some positions outside of the band."""
    keys = outside.key_indices(positions)
    groups: list[Group] = []
    rounded_rows = outside.sizes[0] // COLUMN_ROWS * COLUMN_ROWS
    for start, stop, rows in (
        (0, rounded_rows, COLUMN_ROWS),
        (rounded_rows, outside.sizes[0], outside.sizes[0] - rounded_rows),
    ):
        if start == stop:
            continue
        queries = torch.arange(start, stop).reshape(-1, rows)
        allowed = outside.holds(queries[..., None], keys)
        run = keys.expand(queries.shape[0], -1)
        # Most blocks are far from every column, and need no mask.
        everything, anything = allowed.flatten(1).all(dim=1), allowed.flatten(1).any(dim=1)
        partly_allowed = anything & ~everything
        groups += [
            Group(queries[everything], run[everything]),
            Group(queries[partly_allowed], run[partly_allowed], allowed[partly_allowed]),
        ]
    return groups


@lru_cache(maxsize=8)
def full_rows(outside: Outside, positions: tuple[int, ...]) -> Sequence[Group]:
    """The queries at some positions over all keys outside of the band.

    The columns at the same positions are left out.
    """
    queries, without = outside.query_indices(positions), outside.key_indices(positions)
    groups = []
    for at in range(0, len(queries), GLOBAL_ROWS):
        block_queries = queries[at : at + GLOBAL_ROWS]
        allowed = torch.zeros(1, len(block_queries), outside.sizes[1], dtype=torch.bool)
        # Run by run: a table of distances would be eight times as large.
        for row, query in zip(allowed[0], block_queries.tolist(), strict=True):
            for start, stop in outside.runs(query):
                row[start:stop] = True
        allowed[..., without] = False
        groups.append(Group(block_queries[None], None, allowed))
    return groups


def single_pairs(outside: Outside, lists: Lists) -> list[Group]:
    """Every query over its own list of keys outside of the band."""
    owners, members = lists.pairs()
    queries, keys = owners - outside.first[0], members - outside.first[1]
    is_outside = (queries >= 0) & (queries < outside.sizes[0]) & (keys >= 0) & (keys < outside.sizes[1])
    is_outside = is_outside & outside.holds(queries, keys)
    return plan(queries[is_outside], keys[is_outside])


def _inside(positions: Sequence[int], first: int, size: int) -> Int[Tensor, " some"]:
    index = torch.tensor(sorted(set(positions)), dtype=torch.long) - first
    return index[(index >= 0) & (index < size)]
