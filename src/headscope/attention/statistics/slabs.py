r"""The streaming loop: sums over the visible keys of every row, one slab of the map at a time.

A slab is a few rows of a few heads over the keys they can see, small enough for the processor's cache. With
$e_{ij} = e^{s_{ij} - \max_j s_{ij}}$ it yields, per row, $\sum e$, $\sum e^2$, $\sum e\,(\max s - s)$, the moments of
position, the mass on chosen keys, and $\sum e\,v$ for the output; then the slab is overwritten. All terms of each
sum are positive, so nothing cancels, and the only error that matters is that of the scores.

Numerics:
    Keys are centred per head first (the softmax does not change). A float32 score is then wrong by about
    u·scale·|q_i|·|k_j|, u = 2⁻²⁴; where that product may exceed `FLOAT32_REACH` the slab is computed in float64.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.attention.blocks import allowed_mask, band_mask, row_blocks
from headscope.attention.call import Call
from headscope.attention.statistics.columns import WIDTH, moment_columns
from headscope.attention.statistics.visibility import first_key

SLAB_ENTRIES = 1 << 18
SLAB_ROWS = 64
FLOAT32_REACH = 64.0
MASKED = -1e30  # finite, so that 0 · masked is 0
# Below these, exp gives denormal numbers, which are a hundred times slower to compute with, and do not count.
FLOOR = {torch.float32: -80.0, torch.float64: -700.0}

PerRow = Float[Tensor, "batch heads queries"]


@dataclass(frozen=True)
class Sums:
    """What the loop gathers for each row; every sum is relative to the row's largest score `top`."""

    top: PerRow
    spread: PerRow  # Σ e (top − s)
    square: PerRow  # Σ e²
    before: Float[Tensor, "batch heads queries 31"]  # moments over the keys at or before the query
    after: Float[Tensor, "batch heads queries 31"]
    diagonal: PerRow
    first: PerRow
    bands: dict[int, PerRow]
    values: Float[Tensor, "batch heads queries d_value"] | None

    @classmethod
    def empty(cls, call: Call, bands: tuple[int, ...], *, values: bool) -> "Sums":
        """Room for the sums of a call, all 0."""
        shape = call.q.shape[:3]

        def zeros(*width: int) -> Tensor:
            return torch.zeros(*shape, *width, dtype=torch.float64, device=call.q.device)

        return cls(
            top=zeros(),
            spread=zeros(),
            square=zeros(),
            before=zeros(WIDTH),
            after=zeros(WIDTH),
            diagonal=zeros(),
            first=zeros(),
            bands={width: zeros() for width in bands},
            values=zeros(call.v.shape[-1]).to(torch.promote_types(call.v.dtype, torch.float32)) if values else None,
        )


@dataclass(frozen=True)
class Operands:
    """Keys (centred) and right-hand columns of one chunk, in one precision, with two slabs of scratch memory."""

    k: Float[Tensor, "batch kv_heads keys d_head"]
    columns: Float[Tensor, "batch kv_heads keys columns"]
    scratch: Float[Tensor, "2 entries"]

    def slab(self, which: int, shape: tuple[int, ...]) -> Tensor:
        """A view of the scratch memory."""
        return self.scratch[which, : torch.Size(shape).numel()].view(shape)


class Chunk:
    """Some heads of some sequences of a call, prepared for the loop over rows."""

    def __init__(self, call: Call, bands: tuple[int, ...], *, values: bool) -> None:
        self.call = call
        self.rows = slab_rows(call)
        self.sums = Sums.empty(call, bands, values=values)
        self.slabs = self.double_slabs = 0
        self._prepared: dict[torch.dtype, Operands] = {}

    @cached_property
    def centre(self) -> Float[Tensor, "batch kv_heads 1 d_head"]:
        """What is subtracted from the keys: their mean, or nothing where a softcap makes the shift matter."""
        k = self.call.k.double()
        if self.call.softcap is not None:
            return torch.zeros_like(k[:, :, :1])
        if self.call.key_padding is None:
            return k.mean(dim=2, keepdim=True)
        real = self.call.key_padding[:, None, :, None]
        return (k * real).sum(dim=2, keepdim=True) / real.sum(dim=2, keepdim=True).clamp(min=1)

    @cached_property
    def shift(self) -> PerRow:
        """What centring the keys took from the scores of each row."""
        centre = self.centre.repeat_interleave(self.call.groups, dim=1)
        shift: Tensor = (self.call.scale * self.call.q.double() * centre).sum(dim=-1)
        return shift

    @cached_property
    def reach(self) -> PerRow:
        """The largest |score| that a row could have by its norms."""
        longest = (self.call.k.double() - self.centre).norm(dim=-1).amax(dim=-1).repeat_interleave(self.call.groups, 1)
        reach = abs(self.call.scale) * self.call.q.double().norm(dim=-1) * longest[..., None]
        return reach if self.call.bias is None else reach + self.call.bias.double().abs().amax(dim=-1)

    def run(self) -> Sums:
        """All rows of the chunk."""
        reach = self.reach
        for queries, keys in row_blocks(self.call, self.rows):
            if keys.stop > keys.start:
                strong = bool(reach[:, :, queries].amax() > FLOAT32_REACH)
                self.slabs, self.double_slabs = self.slabs + 1, self.double_slabs + strong
                self._slab(queries, keys, self._operands(torch.float64 if strong else torch.float32))
        return self.sums

    def _operands(self, dtype: torch.dtype) -> Operands:
        if dtype not in self._prepared:
            call = self.call
            columns = moment_columns(call.key_positions)[:, None].expand(*call.k.shape[:3], WIDTH)
            if self.sums.values is not None:
                columns = torch.cat([columns, call.v.double()], dim=-1)
            largest = call.q.shape[0] * call.q.shape[1] * min(self.rows, call.q.shape[2]) * call.k.shape[2]
            self._prepared[dtype] = Operands(
                (call.k.double() - self.centre).to(dtype),
                columns.to(dtype).contiguous(),
                torch.empty(2, largest, dtype=dtype, device=call.q.device),
            )
        return self._prepared[dtype]

    def _slab(self, queries: slice, keys: slice, operands: Operands) -> None:
        block, sums = self.call.take(queries, keys), self.sums
        masks = list(_masks(block))
        scores = _scores(block, operands, keys)
        for run, allowed in masks:
            scores[..., run].masked_fill_(~allowed, MASKED)
        top = scores.amax(dim=-1, keepdim=True)
        scores.sub_(top).clamp_(min=FLOOR[scores.dtype])
        weights = torch.exp(scores, out=operands.slab(1, tuple(scores.shape)))
        for run, allowed in masks:
            weights[..., run].mul_(allowed)
        sums.top[:, :, queries] = top[..., 0]
        sums.spread[:, :, queries] = -torch.mul(scores, weights, out=scores).sum(dim=-1)
        sums.square[:, :, queries] = torch.linalg.vector_norm(weights, dim=-1).double().square()
        sums.diagonal[:, :, queries] = _near(weights, block, 0)
        for width, mass in sums.bands.items():
            mass[:, :, queries] = _near(weights, block, width)
        sums.first[:, :, queries] = _on_key(weights, first_key(self.call) - keys.start)
        self._products(weights, block, queries, operands.columns[:, :, keys])

    def _products(self, weights: Tensor, block: Call, queries: slice, columns: Tensor) -> None:
        sums = self.sums
        for side, part, run in _sides(weights, block):
            batch, heads, rows, keys = part.shape
            stacked = part.reshape(batch, block.k.shape[1], block.groups * rows, keys)
            product = torch.matmul(stacked, columns[:, :, run]).view(batch, heads, rows, -1)
            (sums.after if side else sums.before)[:, :, queries] = product[..., :WIDTH].double()
            if sums.values is not None:
                sums.values[:, :, queries] += product[..., WIDTH:]


def chunks(call: Call) -> Iterator[tuple[slice, slice]]:
    """Runs of sequences and of key/value heads whose slabs fit the scratch memory."""
    batch, kv_heads = call.q.shape[0], call.k.shape[1]
    one = call.groups * min(slab_rows(call), call.q.shape[2]) * call.k.shape[2]
    fit = max(1, SLAB_ENTRIES // max(1, one))
    many = min(kv_heads, fit)
    rows = max(1, fit // kv_heads) if many == kv_heads else 1
    for start in range(0, batch, rows):
        for head in range(0, kv_heads, many):
            yield slice(start, min(start + rows, batch)), slice(head, min(head + many, kv_heads))


def part(call: Call, batch: slice, kv_heads: slice) -> Call:
    """The part of a call that belongs to some sequences and some key/value heads (views, no copies)."""
    heads = slice(kv_heads.start * call.groups, kv_heads.stop * call.groups)

    def of(x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        x = x if x.shape[0] == 1 else x[batch]
        return x if x.ndim < 4 or x.shape[1] == 1 else x[:, heads]

    whole = call.query_positions.shape[0] == 1
    return replace(
        call,
        q=call.q[batch, heads],
        k=call.k[batch, kv_heads],
        v=call.v[batch, kv_heads],
        query_positions=call.query_positions if whole else call.query_positions[batch],
        key_positions=call.key_positions if whole else call.key_positions[batch],
        key_padding=None if call.key_padding is None else call.key_padding[batch],
        mask=of(call.mask),
        bias=of(call.bias),
        sinks=None if call.sinks is None else call.sinks[heads],
    )


def slab_rows(call: Call) -> int:
    """Rows per slab: as many as fit, within what a matrix product likes."""
    return max(16, min(SLAB_ROWS, SLAB_ENTRIES // max(1, call.groups * call.k.shape[2])))


def _scores(block: Call, operands: Operands, keys: slice) -> Float[Tensor, "batch heads rows keys"]:
    """Scores of the block in scratch memory, before the mask, relative to the centre of the keys."""
    batch, heads, rows, width = block.q.shape
    n_keys, kv_heads = block.k.shape[2], block.k.shape[1]
    q = (block.q.to(operands.k.dtype) * block.scale).reshape(batch, kv_heads, block.groups * rows, width)
    scores = operands.slab(0, (batch, kv_heads, block.groups * rows, n_keys))
    torch.matmul(q, operands.k[:, :, keys].transpose(-1, -2), out=scores)
    scores = scores.view(batch, heads, rows, n_keys)
    if block.softcap is not None:
        scores.div_(block.softcap).tanh_().mul_(block.softcap)
    if block.bias is not None:
        scores.add_(block.bias).clamp_(min=MASKED)
    return scores


def _masks(block: Call) -> Iterator[tuple[slice, Tensor]]:
    """The columns where not all is visible, with what is; a band bites only at the edges of a slab."""
    if block.mask is not None or block.key_padding is not None:
        allowed = allowed_mask(block)
        if allowed is not None:
            yield slice(None), allowed
    elif block.offset is None:
        allowed = band_mask(block)
        if allowed is not None:
            yield slice(None), allowed
    else:
        rows, keys, offset = block.q.shape[2], block.k.shape[2], block.offset
        if block.left is not None and (stop := min(rows - 1 + offset - block.left, keys)) > 0:
            yield slice(0, stop), _toeplitz(rows, stop, offset, None, block.left, block.q.device)
        if block.right is not None and (start := max(offset + block.right + 1, 0)) < keys:
            yield slice(start, keys), _toeplitz(rows, keys - start, offset - start, -block.right, None, block.q.device)


@lru_cache(maxsize=256)
def _toeplitz(
    rows: int, keys: int, offset: int, least: int | None, most: int | None, device: torch.device
) -> Bool[Tensor, "rows keys"]:
    """True where least ≤ i + offset − j ≤ most."""
    ahead = torch.arange(rows, device=device)[:, None] + offset - torch.arange(keys, device=device)
    allowed = torch.ones_like(ahead, dtype=torch.bool) if least is None else ahead >= least
    return allowed if most is None else allowed & (ahead <= most)


def _near(weights: Float[Tensor, "batch heads rows keys"], block: Call, width: int) -> Float[Tensor, "batch heads rows"]:
    """Mass on the keys at most `width` positions from the query."""
    if block.offset is None:
        gap = (block.query_positions[:, None, :, None] - block.key_positions[:, None, None, :]).abs()
        return (weights * (gap <= width)).sum(dim=-1)
    rows, keys, offset = weights.shape[2], weights.shape[3], block.offset
    start, stop = min(max(offset - width, 0), keys), max(min(rows + offset + width, keys), 0)
    if stop <= start:
        return weights.new_zeros(weights.shape[:3])
    near = _toeplitz(rows, stop - start, offset - start, -width, width, weights.device)
    return (weights[..., start:stop] * near).sum(dim=-1)


def _on_key(weights: Float[Tensor, "batch heads rows keys"], index: Int[Tensor, " batch"]) -> Float[Tensor, "batch heads rows"]:
    inside = (index >= 0) & (index < weights.shape[-1])
    column = index.clamp(0, weights.shape[-1] - 1)[:, None, None, None].expand(*weights.shape[:3], 1)
    return weights.gather(-1, column)[..., 0] * inside[:, None, None]


def _sides(weights: Tensor, block: Call) -> Iterator[tuple[bool, Tensor, slice]]:
    """The weights on keys at or before each query (False), then on keys after it (True), with their columns.

    A causal block has no other side. Otherwise the second part overwrites the first, so each is to be used
    before the next is asked for.
    """
    if block.causal:
        yield False, weights, slice(None)
        return
    rows, keys, offset = weights.shape[2], weights.shape[3], block.offset
    if offset is None:
        start, stop = 0, keys
        before = block.query_positions[:, None, :, None] >= block.key_positions[:, None, None, :]
    else:  # columns below `start` are before every query of the block, those from `stop` on are after every one
        start, stop = min(max(offset + 1, 0), keys), min(max(rows + offset, 0), keys)
        before = _toeplitz(rows, stop - start, offset - start, 0, None, weights.device)
    mixed = weights[..., start:stop]
    kept = mixed * ~before
    mixed.mul_(before)
    yield False, weights[..., :stop], slice(0, stop)
    mixed.copy_(kept)
    yield True, weights[..., start:], slice(start, keys)
