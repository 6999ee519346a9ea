r"""The weights on keys that a repeated text singles out: near keys, a period back, after a copy of the token.

Rows of the pattern are computed in blocks and read at once, so that no map is stored. A key k *follows a copy* of the
query's token where $t_{k-1} = t_i$ and $k < i$. Its *control* is the pair one token later, (i + 1, k + 1): it has the
same distance, and it counts where it follows no copy itself.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.attention.call import Call
from headscope.attention.maps import pattern
from headscope.attention.sparse.blocks import row_blocks
from headscope.attention.statistics.visibility import first_key, visible_sums

# Distances that are always there, before those of the period: N − 1 and N.
NEAR = (1, 2, 3, 4)
# Columns: NEAR, N − 1, N, keys after copies, their controls, the query itself, the first key, a visible key by chance.
COLUMNS = len(NEAR) + 7
# Rows of the pattern that are computed at a time.
BLOCK = 64

_NOWHERE = -1  # no token has this id


def repeat_masses(
    call: Call, period: int, tokens: Int[Tensor, "batch keys"] | None = None
) -> Float[Tensor, "batch heads queries 11"]:
    """The weights 1, 2, 3, 4, N − 1 and N keys before each query, after copies of its token, and on controls.

    Then the weights on the query itself and on the first real key, and the weight of one visible key where all have
    the same. A key that does not exist has the weight 0. Without tokens the columns of copies and controls are NaN.

    Properties:
        - those sums of the whole pattern  (tested: test_repeat_masses_are_sums_of_the_pattern)
    """
    blocks = []
    for queries, keys in row_blocks(call, BLOCK):
        block = call.take(queries, keys)
        ahead = block.query_positions[:, :, None] - block.key_positions[:, None]
        pairs = None if tokens is None else _pairs(tokens.to(call.q.device), ahead, queries, keys)
        first = first_key(call) - (keys.start or 0)
        blocks.append(_columns(pattern(block), ahead, block.offset, period, first, pairs))
    count = visible_sums(call, ()).count
    even = torch.where(count > 0, 1 / count.clamp(min=1), 0.0).expand(*call.q.shape[:3])
    masses = torch.cat(blocks, dim=2)
    return torch.cat([masses, even.to(masses)[..., None]], -1)


def repeat_masses_of(
    attention_map: Float[Tensor, "batch heads queries keys"],
    period: int,
    tokens: Int[Tensor, "batch keys"] | None = None,
) -> Float[Tensor, "batch heads queries 11"]:
    """The same of a map that is already computed; its last query sits at the last key, its first key is real.

    Which keys are visible is not known, so that the last column is NaN.
    """
    queries, keys = attention_map.shape[-2:]
    offset = max(keys - queries, 0)
    index = torch.arange(max(queries, keys), device=attention_map.device)
    ahead = ((index[:queries] + offset)[:, None] - index[:keys])[None]
    if queries > keys:
        ahead = ahead.new_zeros(1, queries, 1) - index[:keys]
    block = slice(0, queries), slice(0, keys)
    pairs = None if tokens is None else _pairs(tokens.to(attention_map.device), ahead, *block)
    first = torch.zeros(len(attention_map), dtype=torch.long, device=attention_map.device)
    masses = _columns(attention_map, ahead, offset if queries <= keys else None, period, first, pairs)
    return torch.cat([masses, torch.full_like(masses[..., :1], torch.nan)], -1)


def repeat_counts(tokens: Int[Tensor, "batch tokens"]) -> Int[Tensor, "batch tokens 2"]:
    """How many keys follow a copy of each query's token, and how many are controls."""
    index = torch.arange(tokens.shape[1], device=tokens.device)
    counts = []
    for start in range(0, tokens.shape[1], BLOCK):
        queries, keys = slice(start, start + BLOCK), slice(0, min(start + BLOCK, tokens.shape[1]))
        ahead = index[None, queries, None] - index[keys]
        counts.append(torch.stack([pairs.sum(-1) for pairs in _pairs(tokens, ahead, queries, keys)], -1))
    return torch.cat(counts, 1)


def _columns(
    weights: Float[Tensor, "batch heads rows keys"],
    ahead: Int[Tensor, "_ rows keys"],
    offset: int | None,
    period: int,
    first: Int[Tensor, " batch"],
    pairs: Iterator[Bool[Tensor, "batch rows keys"]] | None,
) -> Float[Tensor, "batch heads rows 10"]:
    """All columns of a block but the last; the first query sits `offset` keys after its first key, if that is known."""
    at_distance = _at_distances(weights, ahead, offset, (*NEAR, period - 1, period, 0))
    if pairs is None:
        repeated = torch.full_like(at_distance[..., :2], torch.nan)
    else:
        repeated = torch.stack([_pair_sums(weights, is_pair) for is_pair in pairs], -1)
    on_first = _at(weights, first[:, None, None].expand(-1, weights.shape[2], 1))
    return torch.cat([at_distance[..., :-1], repeated, at_distance[..., -1:], on_first], -1)


def _at_distances(
    weights: Tensor, ahead: Tensor, offset: int | None, distances: tuple[int, ...]
) -> Float[Tensor, "batch heads rows distances"]:
    """The weights on the keys at these distances before each query; 0 where there is none."""
    if offset is not None:
        rows = torch.arange(weights.shape[2], device=weights.device)
        return _at(weights, (rows[:, None] + offset - torch.tensor(distances, device=weights.device))[None])
    if weights.shape[-1] == 0:
        return weights.new_zeros(*weights.shape[:3], len(distances))
    matches = [ahead == distance for distance in distances]
    places = [torch.where(match.any(-1), match.int().argmax(-1), _NOWHERE) for match in matches]
    return _at(weights, torch.stack(places, -1))


def _at(weights: Tensor, places: Int[Tensor, "_ rows columns"]) -> Float[Tensor, "batch heads rows columns"]:
    """The weights at places among the keys; 0 where a place is none of them."""
    keys = weights.shape[-1]
    if keys == 0:
        return weights.new_zeros(*weights.shape[:3], places.shape[-1])
    is_there = (places >= 0) & (places < keys)
    index = places.clamp(0, keys - 1)[:, None].expand(*weights.shape[:3], -1)
    return weights.gather(-1, index) * is_there[:, None]


def _pair_sums(weights: Tensor, is_pair: Bool[Tensor, "batch rows keys"]) -> Float[Tensor, "batch heads rows"]:
    """The weights of the pairs of each query, which are few, summed."""
    batch, heads, rows, _ = weights.shape
    window, row, key = is_pair.expand(batch, -1, -1).nonzero(as_tuple=True)
    sums = weights.new_zeros(batch * rows, heads).index_add(0, window * rows + row, weights[window, :, row, key])
    return sums.reshape(batch, rows, heads).transpose(1, 2)


def _pairs(tokens: Tensor, ahead: Tensor, queries: slice, keys: slice) -> Iterator[Bool[Tensor, "batch rows keys"]]:
    """The pairs whose key follows a copy of the query's token, and their controls."""
    before = torch.nn.functional.pad(tokens, (1, 0), value=_NOWHERE)[:, :-1]
    twice_before = torch.nn.functional.pad(tokens, (2, 0), value=_NOWHERE)[:, : tokens.shape[1]]
    is_past = ahead > 0
    follows = (tokens[:, queries, None] == before[:, None, keys]) & is_past
    yield follows
    came_true = (before[:, queries, None] == twice_before[:, None, keys]) & (twice_before[:, None, keys] != _NOWHERE)
    yield came_true & is_past & ~follows
