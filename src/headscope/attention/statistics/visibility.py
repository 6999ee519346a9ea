r"""Exact integer sums over the visible keys of each query, all weighed alike.

With the real keys sorted by position, the keys within two positions are a run between two binary searches, and
a sum over them is a difference of prefix sums: O(n log n) for a whole call with any padding and any
positions. A stray mask has no such structure and is summed over blocks of rows.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from headscope.attention.call import Call
from headscope.attention.sparse.blocks import allowed_mask, row_blocks

FAR = 1 << 40  # beyond every position; its square is never formed
MASK_ROWS = 256

PerRow = Int[Tensor, "_ _ queries"]  # rows and heads of size 1 or whole: they broadcast


@dataclass(frozen=True)
class Visible:
    """Number and distances |i − j| of each query's visible keys.

    It also counts those at distance 0 and those near.
    """

    count: PerRow
    distance: PerRow  # Σ |i − j|
    square: PerRow  # Σ |i − j|²
    diagonal: PerRow
    first: PerRow  # 1 where the first real key of the sequence is visible
    bands: dict[int, PerRow]


def visible_sums(call: Call, bands: tuple[int, ...]) -> Visible:
    """The sums of every row.

    The heads axis has size 1 unless the mask differs between heads.
    """
    return _banded(call, bands) if call.mask is None else _masked(call, bands)


def _banded(call: Call, bands: tuple[int, ...]) -> Visible:
    keys, at = _SortedKeys.of(call), call.query_positions.long()
    low = at - (FAR if call.left is None else call.left)
    high = at + (FAR if call.right is None else call.right)
    before = keys.within(low, at)
    visible = keys.within(low, high)
    after = visible - before
    distance = at * before[..., 0] - before[..., 1] + after[..., 1] - at * after[..., 0]
    first = keys.positions[:, :1]
    counts = {
        width: keys.within(torch.maximum(low, at - width), torch.minimum(high, at + width))[..., 0]
        for width in {0, *bands}
    }
    return Visible(
        count=visible[..., 0][:, None],
        distance=distance[:, None],
        square=(visible[..., 2] - 2 * at * visible[..., 1] + at * at * visible[..., 0])[:, None],
        diagonal=counts[0][:, None],
        first=((first >= low) & (first <= high)).long()[:, None],
        bands={width: counts[width][:, None] for width in bands},
    )


@dataclass(frozen=True)
class _SortedKeys:
    """The real keys of each sequence by position, with prefix sums of 1, x and x²."""

    positions: Int[Tensor, "rows keys"]  # ascending; padding comes last, at FAR
    sums: Int[Tensor, "rows prefixes 3"]  # sums[:, m] is over the first m keys

    @classmethod
    def of(cls, call: Call) -> "_SortedKeys":
        positions = call.key_positions.long()
        if call.key_padding is not None:
            positions = positions.expand_as(call.key_padding).masked_fill(~call.key_padding, FAR)
        ordered = positions.sort(dim=1).values
        real = ordered < FAR
        x = ordered * real
        powers = torch.stack([real.long(), x, x * x], dim=-1)
        return cls(ordered, torch.nn.functional.pad(powers.cumsum(dim=1), (0, 0, 1, 0)))

    def within(
        self, low: Int[Tensor, "some queries"], high: Int[Tensor, "some queries"]
    ) -> Int[Tensor, "rows queries 3"]:
        """Sums of 1, x and x² over the keys with low ≤ x ≤ high."""
        rows = max(len(self.positions), len(low))
        positions, sums = self.positions.expand(rows, -1).contiguous(), self.sums.expand(rows, -1, -1)

        def prefix(limit: Tensor, right: bool) -> Tensor:
            index = torch.searchsorted(positions, limit.expand(rows, -1).contiguous(), right=right)
            return sums.gather(1, index[..., None].expand(-1, -1, 3))

        return prefix(high, True) - prefix(low, False)


def first_key(call: Call) -> Int[Tensor, " batch"]:
    """The index of the real key with the smallest position, in each sequence."""
    positions = call.key_positions.long().expand(call.q.shape[0], -1)
    if call.key_padding is not None:
        positions = positions.masked_fill(~call.key_padding, FAR)
    return positions.argmin(dim=1)


def _masked(call: Call, bands: tuple[int, ...]) -> Visible:
    blocks = [_block(call.take(queries, slice(None)), bands) for queries, _ in row_blocks(call, MASK_ROWS)]
    names = ("count", "distance", "square", "diagonal", "first")
    return Visible(
        **{name: torch.cat([getattr(block, name) for block in blocks], dim=-1) for name in names},
        bands={width: torch.cat([block.bands[width] for block in blocks], dim=-1) for width in bands},
    )


def _block(block: Call, bands: tuple[int, ...]) -> Visible:
    everything = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=block.q.device)
    allowed = everything if (mask := allowed_mask(block)) is None else mask
    gap = (block.query_positions[:, None, :, None] - block.key_positions[:, None, None, :]).abs().long()

    def total(of: Tensor) -> Tensor:
        return (allowed * of).sum(dim=-1)

    return Visible(
        count=allowed.sum(dim=-1),
        distance=total(gap),
        square=total(gap * gap),
        diagonal=total(gap == 0),
        first=total(torch.arange(block.k.shape[2], device=gap.device) == first_key(block)[:, None, None, None]),
        bands={width: total(gap <= width) for width in bands},
    )
