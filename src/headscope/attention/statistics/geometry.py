"""Visibility inside one slab: hidden, near, before and after the query."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.attention.call import Call
from headscope.attention.sparse.blocks import allowed_mask

# The heads of a group are neighbours in memory, so that a run of rows is one matrix.
Slab = Float[Tensor, "batch kv_heads rows groups keys"]


@dataclass(frozen=True)
class Block:
    """A run of queries of a call and the run of keys that they can see."""

    call: Call
    queries: slice
    keys: slice

    @cached_property
    def inner(self) -> Call:
        """The call of the block alone."""
        return self.call.take(self.queries, self.keys)

    @cached_property
    def offset(self) -> int | None:
        """As `Call.offset`, for the indices of the block."""
        return None if self.call.offset is None else self.call.offset + self.queries.start - self.keys.start

    @cached_property
    def ahead(self) -> Int[Tensor, "batch 1 rows 1 keys"]:
        """Query position minus key position, with the axes of a slab."""
        queries, keys = self.call.query_positions[:, self.queries], self.call.key_positions[:, self.keys]
        return queries[:, None, :, None, None] - keys[:, None, None, None, :]


def hidden(block: Block) -> Iterator[tuple[slice, Bool[Tensor, "..."]]]:
    """The runs of keys where not all is visible, with the hidden pairs.

    A band cuts only the edges of a slab.
    """
    call, offset = block.call, block.offset
    if call.mask is not None or call.key_padding is not None or offset is None:
        allowed = allowed_mask(block.inner)
        if allowed is not None:
            yield slice(None), ~grouped(allowed, call.groups)
        return
    rows, keys = block.queries.stop - block.queries.start, block.keys.stop - block.keys.start
    if call.left is not None and (stop := min(rows - 1 + offset - call.left, keys)) > 0:
        yield slice(0, stop), _band(rows, stop, offset, call.left + 1, None, call.q.device)
    if call.right is not None and (start := max(offset + call.right + 1, 0)) < keys:
        yield slice(start, keys), _band(rows, keys - start, offset - start, None, -call.right - 1, call.q.device)


@lru_cache(maxsize=256)
def _band(
    rows: int, keys: int, offset: int, least: int | None, most: int | None, device: torch.device
) -> Bool[Tensor, "rows 1 keys"]:
    """True where least ≤ i + offset − j ≤ most."""
    ahead = torch.arange(rows, device=device)[:, None, None] + offset - torch.arange(keys, device=device)
    inside = torch.ones_like(ahead, dtype=torch.bool) if least is None else ahead >= least
    return inside if most is None else inside & (ahead <= most)


def near(weights: Slab, block: Block, width: int) -> Float[Tensor, "batch kv_heads rows groups"]:
    """Mass on the keys at most `width` positions from the query."""
    if block.offset is None:
        return (weights * (block.ahead.abs() <= width)).sum(dim=-1)
    rows, keys, offset = weights.shape[2], weights.shape[4], block.offset
    start, stop = max(offset - width, 0), min(rows + offset + width, keys)
    if stop <= start:
        return weights.new_zeros(weights.shape[:4])
    if width == 0 and stop - start == rows:
        return weights.diagonal(offset, dim1=2, dim2=4).transpose(2, 3).clone()
    near = _band(rows, stop - start, offset - start, -width, width, weights.device)
    return (weights[..., start:stop] * near).sum(dim=-1)


def sides(weights: Slab, block: Block) -> Iterator[tuple[str, Slab, slice]]:
    """Weights on keys up to each query, then on keys after it, with their runs.

    A causal block has no other side. Otherwise the second part overwrites the first: use each before the next.
    """
    if block.call.causal:
        yield "before", weights, slice(None)
        return
    rows, keys, offset = weights.shape[2], weights.shape[4], block.offset
    if offset is None:
        start, stop, before = 0, keys, block.ahead >= 0
    else:  # keys below `start` are before every query of the block, those from `stop` on are after every one
        start, stop = min(max(offset + 1, 0), keys), min(max(rows + offset, 0), keys)
        before = _band(rows, stop - start, offset - start, 0, None, weights.device)
    mixed = weights[..., start:stop]
    after = mixed * ~before
    mixed.mul_(before)
    yield "before", weights[..., :stop], slice(0, stop)
    mixed.copy_(after)
    yield "after", weights[..., start:], slice(start, keys)


def grouped(x: Tensor, groups: int) -> Tensor:
    """[batch, heads, rows, keys], where heads may be 1, to the axes of a slab."""
    split = x.unsqueeze(1) if x.shape[1] == 1 else x.reshape(x.shape[0], -1, groups, *x.shape[2:])
    return split.transpose(2, 3)
