r"""The weights on keys that a repeated text singles out: near keys, a period back, after a copy of the token.

Rows of the pattern are computed in blocks and summed at once, so that no map is stored. A key k *follows a copy* of the
query's token where $t_{k-1} = t_i$ and $k < i$. Its *control* is the pair one token later, (i + 1, k + 1): it has the
same distance, and it counts where it follows no copy itself.
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.attention.call import Call
from headscope.attention.maps import pattern
from headscope.attention.sparse.blocks import row_blocks

# Distances that are always there, before those of the period: N − 1 and N.
NEAR = (1, 2, 3, 4)
# Columns: NEAR, N − 1, N, keys after copies, their controls.
COLUMNS = len(NEAR) + 4
# Rows of the pattern that are computed at a time.
BLOCK = 64

_NOWHERE = -1  # no token has this id


def repeat_masses(
    call: Call, period: int, tokens: Int[Tensor, "batch keys"] | None = None
) -> Float[Tensor, "batch heads queries 8"]:
    """The weights 1, 2, 3, 4, N − 1 and N keys before each query, after copies of its token, and on controls.

    A key that does not exist has the weight 0. Without tokens the last two columns are NaN.

    Properties:
        - those sums of the whole pattern  (tested: test_repeat_masses_are_sums_of_the_pattern)
    """
    blocks = [
        _columns(pattern(call.take(queries, keys)), _ahead(call, queries, keys), period, tokens, queries, keys)
        for queries, keys in row_blocks(call, BLOCK)
    ]
    return torch.cat(blocks, dim=2)


def repeat_masses_of(
    attention_map: Float[Tensor, "batch heads queries keys"],
    period: int,
    tokens: Int[Tensor, "batch keys"] | None = None,
) -> Float[Tensor, "batch heads queries 8"]:
    """The same of a map that is already computed; its last query sits at the last key."""
    queries, keys = attention_map.shape[-2:]
    index = torch.arange(keys, device=attention_map.device)
    ahead = (index[-queries:] if queries <= keys else index.new_zeros(queries))[None, :, None] - index
    return _columns(attention_map, ahead, period, tokens, slice(0, queries), slice(0, keys))


def repeat_counts(tokens: Int[Tensor, "batch tokens"]) -> Int[Tensor, "batch tokens 2"]:
    """How many keys follow a copy of each query's token, and how many are controls."""
    index = torch.arange(tokens.shape[1], device=tokens.device)
    counts = []
    for start in range(0, tokens.shape[1], BLOCK):
        queries, keys = slice(start, start + BLOCK), slice(0, min(start + BLOCK, tokens.shape[1]))
        ahead = index[None, queries, None] - index[keys]
        counts.append(torch.stack([pairs.sum(-1) for pairs in _pairs(tokens, ahead, queries, keys)], -1))
    return torch.cat(counts, 1)


def _ahead(call: Call, queries: slice, keys: slice) -> Int[Tensor, "_ rows keys"]:
    """Query position minus key position."""
    return call.query_positions[:, queries, None] - call.key_positions[:, None, keys]


def _columns(
    weights: Float[Tensor, "batch heads rows keys"],
    ahead: Int[Tensor, "_ rows keys"],
    period: int,
    tokens: Int[Tensor, "batch tokens"] | None,
    queries: slice,
    keys: slice,
) -> Float[Tensor, "batch heads rows 8"]:
    near = _at_distances(weights, ahead, (*NEAR, period - 1, period))
    if tokens is None:
        return torch.cat((near, torch.full_like(near[..., :2], torch.nan)), -1)
    pairs = _pairs(tokens.to(weights.device), ahead, queries, keys)
    return torch.cat((near, torch.stack([(weights * is_pair[:, None]).sum(-1) for is_pair in pairs], -1)), -1)


def _at_distances(weights: Tensor, ahead: Tensor, distances: Sequence[int]) -> Float[Tensor, "batch heads rows some"]:
    """The weights on the keys at these distances before each query; 0 where there is none."""
    if weights.shape[-1] == 0:
        return weights.new_zeros(*weights.shape[:3], len(distances))
    distance = torch.tensor(distances, device=ahead.device)
    # Positions without gaps, as almost always: the key is found by its place.
    index = (
        (ahead[..., :1] - distance).clamp(0, weights.shape[-1] - 1)
        if _has_no_gaps(ahead)
        else (ahead[..., None] == distance).int().argmax(-2)
    )
    is_there = ahead.gather(-1, index) == distance
    return weights.gather(-1, index[:, None].expand(*weights.shape[:3], -1)) * is_there[:, None]


def _has_no_gaps(ahead: Tensor) -> bool:
    keys = torch.arange(ahead.shape[-1], device=ahead.device)
    return bool((ahead[:, :1] == ahead[:, :1, :1] - keys).all())


def _pairs(tokens: Tensor, ahead: Tensor, queries: slice, keys: slice) -> Iterator[Bool[Tensor, "batch rows keys"]]:
    """The pairs whose key follows a copy of the query's token, and their controls."""
    before = torch.nn.functional.pad(tokens, (1, 0), value=_NOWHERE)[:, :-1]
    twice_before = torch.nn.functional.pad(tokens, (2, 0), value=_NOWHERE)[:, : tokens.shape[1]]
    is_past = ahead > 0
    follows = (tokens[:, queries, None] == before[:, None, keys]) & is_past
    yield follows
    came_true = (before[:, queries, None] == twice_before[:, None, keys]) & (twice_before[:, None, keys] != _NOWHERE)
    yield came_true & is_past & ~follows
