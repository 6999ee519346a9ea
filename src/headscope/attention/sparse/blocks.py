r"""Blocks of a call: the keys a run of queries can see, and the mask of a block.

The fast paths work on rows of blocks, so that no mask is ever larger than a few rows of the map, and keys
beyond the band are not touched.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headscope.attention.call import Call

Mask = Bool[Tensor, "mask_batch mask_heads queries keys"]


def row_blocks(call: Call, rows: int) -> Iterator[tuple[slice, slice]]:
    """Runs of at most `rows` queries, each with the run of keys that it can see."""
    for start in range(0, call.q.shape[2], rows):
        queries = slice(start, min(start + rows, call.q.shape[2]))
        yield queries, _reach(call, queries)


def band_mask(call: Call) -> Mask | None:
    """True where the band of the call lets a query see a key; None for all."""
    if call.left is None and call.right is None:
        return None
    if call.offset is not None:
        queries, keys, device = call.q.shape[2], call.k.shape[2], call.q.device
        widest, narrowest = queries - 1 + call.offset, call.offset - keys + 1
        if (call.left is None or widest <= call.left) and (call.right is None or narrowest >= -call.right):
            return None
        rows = torch.arange(queries, device=device)[None, None, :, None]
        ahead = rows + call.offset - torch.arange(keys, device=device)
    else:
        ahead = call.query_positions[:, None, :, None] - call.key_positions[:, None, None, :]
    inside = torch.ones_like(ahead, dtype=torch.bool) if call.left is None else ahead <= call.left
    return inside if call.right is None else inside & (ahead >= -call.right)


def allowed_mask(call: Call) -> Mask | None:
    """True where a query may see a key, for all reasons of the call.

    It is None where all see all.
    """
    masks = [band_mask(call), call.mask]
    if call.key_padding is not None and not bool(call.key_padding.all()):
        masks.append(call.key_padding[:, None, None, :])
    present_masks = [mask for mask in masks if mask is not None]
    if not present_masks:
        return None
    allowed = present_masks[0]
    for mask in present_masks[1:]:
        allowed = allowed & mask
    return allowed.expand(-1, -1, call.q.shape[2], -1)


def real_runs(call: Call) -> tuple[tuple[int, int], ...] | None:
    """Begin and end of the real keys of each sequence.

    It is None where padding lies between them.
    """
    if call.key_padding is None:
        return ((0, call.k.shape[2]),) * call.q.shape[0]
    count = call.key_padding.sum(dim=1)
    first = call.key_padding.int().argmax(dim=1)
    steps = torch.arange(call.k.shape[2], device=count.device)
    filled = (steps >= first[:, None]) & (steps < (first + count)[:, None])
    if not torch.equal(filled, call.key_padding):
        return None
    return tuple(zip(first.tolist(), (first + count).tolist(), strict=True))


def only_limits(call: Call) -> bool:
    """Whether only dot products, limits and padding shape the map.

    A sink scales the output afterwards.
    """
    return replace(call, sinks=None, key_padding=None).plain


def origin(call: Call) -> tuple[int, int] | None:
    """The first query and key position of positions without gaps, else None.

    The positions must agree within the batch.
    """
    first = call.key_positions[:, 0] if call.key_positions.shape[1] else call.key_positions.new_zeros(1)
    if call.offset is None or not bool((first == first[0]).all()):
        return None
    return int(first[0]) + call.offset, int(first[0])


def blind(
    call: Call,
) -> tuple[Float[Tensor, "batch heads queries d_value"], Float[Tensor, "batch heads queries"]]:
    """Output and log-sum-exp of queries that see nothing."""
    # An empty sum, so that the zeros keep their place in the graph.
    zeros = call.q[..., :0].sum(dim=-1, keepdim=True).expand(*call.q.shape[:3], call.v.shape[-1])
    wide = torch.promote_types(call.q.dtype, torch.float32)
    return zeros, call.q.new_full(call.q.shape[:3], -torch.inf, dtype=wide)


def _reach(call: Call, queries: slice) -> slice:
    keys = call.k.shape[2]
    if call.left is None and call.right is None:
        return slice(0, keys)
    if call.offset is not None:
        first = 0 if call.left is None else queries.start + call.offset - call.left
        last = keys - 1 if call.right is None else queries.stop - 1 + call.offset + call.right
    else:
        first, last = _irregular_reach(call, queries)
    first = min(max(first, 0), keys)
    return slice(first, min(max(last + 1, first), keys))


def _irregular_reach(call: Call, queries: slice) -> tuple[int, int]:
    asking = call.query_positions[:, queries]
    reachable = torch.ones_like(call.key_positions, dtype=torch.bool)
    if call.left is not None:
        reachable = reachable & (call.key_positions >= asking.amin(dim=1, keepdim=True) - call.left)
    if call.right is not None:
        reachable = reachable & (call.key_positions <= asking.amax(dim=1, keepdim=True) + call.right)
    key_indices = reachable.any(dim=0).nonzero()
    return (int(key_indices[0]), int(key_indices[-1])) if len(key_indices) else (0, -1)
