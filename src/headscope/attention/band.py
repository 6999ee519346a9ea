r"""Attention inside a band of the index matrix, in time O(n).

Query i sees key j when $-\text{right} \le i + \text{offset} - j \le \text{left}$. A block of neighbouring queries sees
a run of neighbouring keys, and the runs of successive blocks overlap. As `as_strided` views they overlap in memory
too: all blocks go into one call of the flash operator, blocks on the batch axis, without a copy of a key, under one
small mask that they share. The rows at both ends, whose runs would leave the sequence, are tiles of their own.

The backward pass calls the operator's own backward on the same views, in groups of blocks so that its overlapping
key gradients stay in cache, and adds them up.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from headscope.attention import kernel

BLOCK = 32
BACKWARD_BLOCK = 64  # larger, so that fewer key gradients overlap
GROUP_ENTRIES = 1 << 20


@dataclass(frozen=True)
class Band:
    """A band of an index matrix: who sees whom, and at what scale."""

    left: int
    right: int
    offset: int
    scale: float


@dataclass(frozen=True)
class Tile:
    """`count` blocks of `rows` queries from `query` on, each with `width` keys from `key` on, `rows` further each."""

    query: int
    rows: int
    count: int
    key: int
    width: int

    def split(self, blocks: int) -> Iterator["Tile"]:
        """The same in groups of at most so many blocks."""
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
) -> kernel.Rows:
    """Output and log-sum-exp of attention inside a band, with gradients; needs `kernel.has_flash()`.

    Properties:
        - equals the dense mask, with gradients  (tested: test_window_in_tiles_equals_definition)
        - every query and every near key is in a tile once  (tested: test_tiles_cover_the_band)
    """
    d_value = v.shape[-1]
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in kernel.of_one_width(q, k, v))
    out, lse = _BandAttention.apply(q, k, v, band)  # type: ignore[no-untyped-call]
    return out[..., :d_value], lse


def tiles(queries: int, keys: int, band: Band, block: int = BLOCK) -> list[Tile]:
    """Tiles that cover every query once: the inner blocks, and the rows before and after them."""
    inner_from = min(max(band.left - band.offset, 0), queries)
    inner_to = min(keys - band.right - band.offset, queries)
    count = max(inner_to - inner_from, 0) // block
    stop = inner_from + count * block
    found = [_edge(0, inner_from, keys, band), _edge(stop, queries, keys, band)]
    if count:
        first_key = inner_from + band.offset - band.left
        found.insert(1, Tile(inner_from, block, count, first_key, block + band.left + band.right))
    return [tile for tile in found if tile.rows > 0]


def _edge(start: int, stop: int, keys: int, band: Band) -> Tile:
    first = min(max(start + band.offset - band.left, 0), keys)
    last = min(max(stop - 1 + band.offset + band.right, first - 1), keys - 1)
    return Tile(start, stop - start, 1, first, last + 1 - first)


def _mask(tile: Tile, band: Band, dtype: torch.dtype) -> Float[Tensor, "rows run"]:
    """What is added to the scores of every block of the tile: 0 inside the band, −∞ outside."""
    return _band_mask(tile.rows, tile.width, tile.query + band.offset - tile.key, band.left, band.right, dtype)


@lru_cache(maxsize=64)
def _band_mask(
    rows: int, width: int, shift: int, left: int, right: int, dtype: torch.dtype
) -> Float[Tensor, "rows width"]:
    ahead = torch.arange(rows)[:, None] + shift - torch.arange(width)
    return torch.zeros(rows, width, dtype=dtype).masked_fill((ahead > left) | (ahead < -right), -torch.inf)


def _sees_nothing(tile: Tile, band: Band) -> Bool[Tensor, " rows"]:
    return (_mask(tile, band, torch.float32) == -torch.inf).all(dim=-1)


class _BandAttention(torch.autograd.Function):
    """All tiles of all sequences, forward and backward."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, band: Band) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        # Heads and positions swapped in memory, as the operator writes: so blocks of it are copied in one run.
        out = q.new_empty(q.shape[0], q.shape[2], q.shape[1], q.shape[3]).transpose(1, 2)
        lse = torch.empty(q.shape[:3], dtype=torch.promote_types(q.dtype, torch.float32))
        for tile in tiles(q.shape[2], k.shape[2], band):
            for b in range(q.shape[0]):
                part, rows = _attended(tile, band, (q[b], k[b], v[b]))
                tile.queries_of(out[b]).copy_(part)
                tile.queries_of(lse[b, ..., None])[..., 0].copy_(rows)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.band = band
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        band: Band = ctx.band
        # What the operator's backward expects of a row that sees nothing.
        lse = lse.masked_fill(lse == -torch.inf, 0.0)
        grad_out = torch.zeros_like(out) if grad_out is None else grad_out.contiguous()
        grads = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        width = BACKWARD_BLOCK + band.left + band.right
        blocks = max(1, GROUP_ENTRIES // (k.shape[1] * width * k.shape[3]))
        for whole in tiles(q.shape[2], k.shape[2], band, BACKWARD_BLOCK):
            for tile in whole.split(blocks) if whole.width else ():
                for b in range(q.shape[0]):
                    row_grads = grad_out[b], None if grad_lse is None else grad_lse[b]
                    _add_gradients(tile, band, (q[b], k[b], v[b]), (out[b], lse[b]), row_grads, [g[b] for g in grads])
        return (*grads, None)


def _attended(tile: Tile, band: Band, qkv: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
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
    qkv: tuple[Tensor, Tensor, Tensor],
    rows: tuple[Tensor, Tensor],
    row_grads: tuple[Tensor, Tensor | None],
    grads: list[Tensor],
) -> None:
    """Add what one group of blocks contributes to the gradients of one sequence."""

    def of_rows(x: Tensor) -> Tensor:
        return tile.queries_of(x.contiguous()[..., None])[..., 0]

    mask = _mask(tile, band, qkv[0].dtype)
    grad_lse = None if row_grads[1] is None else of_rows(row_grads[1]).masked_fill(_sees_nothing(tile, band), 0.0)
    grad_q, grad_k, grad_v = kernel.gradients(
        tile.queries_of(row_grads[0]),
        grad_lse,
        (tile.queries_of(qkv[0]), tile.keys_of(qkv[1]), tile.keys_of(qkv[2])),
        (tile.queries_of(rows[0]), of_rows(rows[1])),
        mask=mask,
        scale=band.scale,
    )
    tile.queries_of(grads[0]).copy_(grad_q)
    # The runs of keys overlap, so their gradients are added a block's width at a time, where they do not.
    for start in range(0, tile.width, tile.rows):
        piece = Tile(tile.query, tile.rows, tile.count, tile.key + start, min(tile.rows, tile.width - start))
        piece.keys_of(grads[1]).add_(grad_k[:, :, start : start + piece.width])
        piece.keys_of(grads[2]).add_(grad_v[:, :, start : start + piece.width])
