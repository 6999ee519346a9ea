r"""Attention inside a band of the index matrix, in time O(n).

Query i sees key j when $-\text{right} \le i + \text{offset} - j \le \text{left}$. A block of neighbouring queries sees
a run of neighbouring keys, and the runs of successive blocks overlap. As `as_strided` views they overlap in memory
too: all blocks go into one call of the flash operator, blocks on the batch axis, without a copy of a key, under one
small mask that they share. The rows at both ends, whose runs would leave the sequence, are tiles of their own.

The backward pass calls the operator's own backward on the same views, in groups of blocks so that its overlapping
key gradients stay in cache, and adds them up. Padding at the ends of a sequence leaves a run of real keys: the same
band of a shorter matrix.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headscope.attention import compiled
from headscope.attention.call import Call
from headscope.attention.sparse import kernel
from headscope.attention.sparse.blocks import only_limits
from headscope.attention.sparse.parts import Part, Triple, attention_over
from headscope.errors import UsageError

BLOCK = 32
BACKWARD_BLOCK = 64  # larger, so that fewer key gradients overlap
GROUP_ENTRIES = 1 << 20
KEPT_ENTRIES = 1 << 18


@dataclass(frozen=True)
class Band:
    """A band of an index matrix: the visible pairs, and the scale of the scores."""

    left: int
    right: int
    offset: int
    scale: float


@dataclass(frozen=True)
class Tile:
    """`count` blocks of `rows` queries, each with `width` keys.

    Queries begin at `query`, keys at `key`; each block is `rows` further.
    """

    query: int
    rows: int
    count: int
    key: int
    width: int

    def split(self, blocks: int) -> Iterator["Tile"]:
        """The same tile in groups of at most `blocks` blocks."""
        for start in range(0, self.count, blocks):
            yield Tile(
                self.query + start * self.rows,
                self.rows,
                min(blocks, self.count - start),
                self.key + start * self.rows,
                self.width,
            )

    def queries_of(self, x: Float[Tensor, "heads queries width"]) -> Float[Tensor, "count heads rows width"]:
        """The queries of each block, as a view."""
        return self._blocks(x, self.query, self.rows)

    def keys_of(self, x: Float[Tensor, "kv_heads keys width"]) -> Float[Tensor, "count kv_heads run width"]:
        """The keys of each block, as an overlapping view: read only."""
        return self._blocks(x, self.key, self.width)

    def _blocks(self, x: Tensor, start: int, size: int) -> Tensor:
        heads, _, width = x.shape
        per_head, per_row, per_entry = x.stride()
        strides = (self.rows * per_row, per_head, per_row, per_entry)
        return x.as_strided((self.count, heads, size, width), strides, x.storage_offset() + start * per_row)


def band_attention(
    q: Float[Tensor, "batch heads queries d_head"],
    k: Float[Tensor, "batch kv_heads keys d_head"],
    v: Float[Tensor, "batch kv_heads keys d_value"],
    band: Band,
    runs: tuple[tuple[int, int], ...] | None = None,
) -> kernel.Rows:
    """Output and log-sum-exp of attention inside a band, with gradients.

    It needs `kernel.has_flash()`.

    `runs` says which keys of each sequence are real, where there is padding around them.

    Properties:
        - equals the dense mask, with gradients  (tested: test_window_in_tiles_equals_definition)
        - every query and every near key is in a tile once  (tested: test_tiles_cover_the_band)
    """
    return attention_over([Banded(band, runs)], q, k, v)


def narrow_band(call: Call) -> Band | None:
    """The call as a band that is narrow enough for tiles, or None.

    It is None too where something else shapes the call.
    """
    if not only_limits(call) or call.q.device.type != "cpu" or not kernel.has_flash() or call.offset is None:
        return None
    queries, keys = call.q.shape[2], call.k.shape[2]
    # No query is further from a key than the ends of the sequence let it be.
    left, right = max(queries - 1 + call.offset, 0), max(keys - 1 - call.offset, 0)
    left = left if call.left is None else min(left, call.left)
    right = right if call.right is None else min(right, call.right)
    if queries < 4 * BLOCK or 2 * (left + right + BLOCK) > keys:
        return None
    return Band(left, right, call.offset, call.scale)


def tiles(queries: int, keys: int, band: Band, block: int = BLOCK) -> list[Tile]:
    """Tiles that cover every query once: inner blocks, and the rows around them."""
    inner_from = min(max(band.left - band.offset, 0), queries)
    inner_to = min(keys - band.right - band.offset, queries)
    count = max(inner_to - inner_from, 0) // block
    stop = inner_from + count * block
    candidates = [_edge(0, inner_from, keys, band), _edge(stop, queries, keys, band)]
    if count:
        first_key = inner_from + band.offset - band.left
        candidates.insert(1, Tile(inner_from, block, count, first_key, block + band.left + band.right))
    return [tile for tile in candidates if tile.rows > 0]


def _edge(start: int, stop: int, keys: int, band: Band) -> Tile:
    first = min(max(start + band.offset - band.left, 0), keys)
    last = min(max(stop - 1 + band.offset + band.right, first - 1), keys - 1)
    return Tile(start, stop - start, 1, first, last + 1 - first)


def _mask(tile: Tile, band: Band, dtype: torch.dtype) -> Float[Tensor, "rows run"]:
    """The addition to the scores of every block of a tile: 0 in the band, else −∞."""
    shape = tile.rows, tile.width, tile.query + band.offset - tile.key, band.left, band.right, dtype
    # Large masks belong to the ends of a sequence; with padding there are too many to keep.
    return _band_mask(*shape) if tile.rows * tile.width <= KEPT_ENTRIES else _made_mask(*shape)


@lru_cache(maxsize=64)
def _band_mask(
    rows: int, width: int, shift: int, left: int, right: int, dtype: torch.dtype
) -> Float[Tensor, "rows width"]:
    return _made_mask(rows, width, shift, left, right, dtype)


def _made_mask(
    rows: int, width: int, shift: int, left: int, right: int, dtype: torch.dtype
) -> Float[Tensor, "rows width"]:
    places, keys = torch.arange(rows)[:, None] + shift, torch.arange(width)
    # Keys are compared with the ends of the band: distances of all pairs would be twice as large as the mask.
    hidden = (keys < places - left) | (keys > places + right)
    return torch.zeros(rows, width, dtype=dtype).masked_fill_(hidden, -torch.inf)


def _sees_nothing(tile: Tile, band: Band) -> Bool[Tensor, " rows"]:
    places = torch.arange(tile.rows) + tile.query + band.offset - tile.key
    return (places + band.right < 0) | (places - band.left >= tile.width) | (band.left + band.right < 0)


@dataclass(frozen=True)
class Banded(Part):
    """The pairs inside a band.

    It writes every row, so that it comes first among several parts.
    """

    band: Band
    runs: tuple[tuple[int, int], ...] | None = None  # the keys that are real, from and to, of each sequence

    def attend(self, sequence: int, qkv: Triple, rows: tuple[Tensor, Tensor], *, fresh: bool) -> None:
        """Write the rows tile by tile."""
        if not fresh:
            raise UsageError("a band writes every row, so it must be the first part")
        (start, stop), band = self._run(sequence, qkv[1])
        q, k, v = qkv[0], qkv[1][:, start:stop], qkv[2][:, start:stop]
        if compiled.takes(q):
            compiled.row_sums(
                q, k, v, scale=band.scale, left=band.left, right=band.right, offset=band.offset, into=rows
            )  # fmt: skip
            return
        blocks = max(1, GROUP_ENTRIES // (q.shape[0] * BLOCK * q.shape[2]))
        for large_tile in tiles(q.shape[1], k.shape[1], band):
            # In groups, so that the operator's output is still in cache when it is copied.
            for tile in large_tile.split(blocks):
                out, lse = _attended(tile, band, (q, k, v))
                tile.queries_of(rows[0]).copy_(out)
                tile.queries_of(rows[1][..., None])[..., 0].copy_(lse)

    def add_gradients(
        self,
        sequence: int,
        qkv: Triple,
        rows: tuple[Tensor, Tensor],
        row_grads: tuple[Tensor, Tensor | None],
        grads: Triple,
    ) -> None:
        """Add gradients in groups of blocks.

        The overlapping gradients of their keys then stay in the cache.
        """
        (start, stop), band = self._run(sequence, qkv[1])
        real = slice(start, stop)
        qkv, grads = (qkv[0], qkv[1][:, real], qkv[2][:, real]), (grads[0], grads[1][:, real], grads[2][:, real])
        if compiled.takes(qkv[0]):
            with compiled.added_to(grads) as into:
                compiled.band_gradients(
                    compiled.padded(qkv), compiled.row_values(rows, row_grads), into,
                    scale=band.scale, left=band.left, right=band.right, offset=band.offset,
                )  # fmt: skip
            return
        kv_heads, keys, width = qkv[1].shape
        blocks = max(1, GROUP_ENTRIES // (kv_heads * (BACKWARD_BLOCK + band.left + band.right) * width))
        for large_tile in tiles(qkv[0].shape[1], keys, band, BACKWARD_BLOCK):
            for tile in large_tile.split(blocks) if large_tile.width else ():
                _add_gradients(tile, band, qkv, rows, row_grads, grads)

    def _run(self, sequence: int, k: Tensor) -> tuple[tuple[int, int], Band]:
        """The real keys of a sequence, and the band relative to them."""
        if self.runs is None:
            return (0, k.shape[1]), self.band
        start, stop = self.runs[sequence]
        return (start, stop), replace(self.band, offset=self.band.offset - start)


def _attended(tile: Tile, band: Band, qkv: Triple) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of the blocks of a tile, for one sequence."""
    q, k, v = tile.queries_of(qkv[0]), tile.keys_of(qkv[1]), tile.keys_of(qkv[2])
    if tile.width == 0:
        return torch.zeros_like(q), q.new_full(q.shape[:3], -torch.inf)
    mask = _mask(tile, band, q.dtype)
    out, lse = kernel.flash_forward()(q, k, v, 0.0, False, attn_mask=mask, scale=band.scale)
    # The operator says lse = 0 where a row sees nothing.
    return out, lse.masked_fill(_sees_nothing(tile, band), -torch.inf)


def _add_gradients(
    tile: Tile,
    band: Band,
    qkv: Triple,
    rows: tuple[Tensor, Tensor],
    row_grads: tuple[Tensor, Tensor | None],
    grads: Triple,
) -> None:
    """Add the gradients of one group of blocks, for one sequence."""

    def of_rows(x: Tensor) -> Tensor:
        return tile.queries_of(x.contiguous()[..., None])[..., 0]

    mask = _mask(tile, band, qkv[0].dtype)
    grad_lse = None if row_grads[1] is None else of_rows(row_grads[1])
    grad_q, grad_k, grad_v = kernel.gradients(
        tile.queries_of(row_grads[0]),
        grad_lse,
        (tile.queries_of(qkv[0]), tile.keys_of(qkv[1]), tile.keys_of(qkv[2])),
        (tile.queries_of(rows[0]), of_rows(rows[1])),
        mask=mask,
        scale=band.scale,
    )
    tile.queries_of(grads[0]).add_(grad_q)
    # The runs of keys overlap, so their gradients are added a block's width at a time, where they do not.
    for start in range(0, tile.width, tile.rows):
        piece = Tile(tile.query, tile.rows, tile.count, tile.key + start, min(tile.rows, tile.width - start))
        piece.keys_of(grads[1]).add_(grad_k[:, :, start : start + piece.width])
        piece.keys_of(grads[2]).add_(grad_v[:, :, start : start + piece.width])
