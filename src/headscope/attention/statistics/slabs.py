r"""The streaming loop: sums over the visible keys of every row, slab by slab.

A slab is a few rows of a few heads over the keys they can see, small enough for the processor's cache. With
$e_{ij} = e^{s_{ij} - \max_j s_{ij}}$ it yields, per row, $\sum e^2$, $\sum e\,(\max s - s)$, the mass near the query,
and the product of $e$ with `columns`: $\sum e$, the moments of position, and $\sum e\,v$ for the output. Then the next
slab overwrites it. The terms of every sum are positive (but those of the output), so nothing cancels, and the
only error that matters is that of the scores.

Numerics:
    Keys are centred per head first (the softmax does not change). A float32 score is then wrong by about
    u·scale·|q_i|·|k_j|, u = 2⁻²⁴ (at worst four times that, by measurement), and a mass by a quarter of its score's
    error; where the product may exceed `FLOAT32_REACH`, which keeps masses within 4·10⁻⁶, the slab is computed in
    float64.  (tested: test_strong_scores_are_computed_in_float64_and_said_so)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.attention.call import Call
from headscope.attention.sparse.blocks import row_blocks
from headscope.attention.statistics import fused
from headscope.attention.statistics.columns import SHARED, anchors, mean_and_variance, shared_columns
from headscope.attention.statistics.geometry import Block, Slab, grouped, hidden, near, sides
from headscope.attention.statistics.sums import PerRow, Side, Sums
from headscope.attention.statistics.visibility import first_key

SLAB_ENTRIES = 1 << 19
SLAB_ROWS = 64
FLOAT32_REACH = 64.0
MASKED = -1e30  # finite, so that 0 · masked is 0
# Below these, exp gives denormal numbers, which are a hundred times slower to compute with, and do not count.
FLOOR = {torch.float32: -80.0, torch.float64: -700.0}


@dataclass(frozen=True)
class Operands:
    """The tensors of a chunk in one precision, and scratch memory for two slabs."""

    q: Float[Tensor, "batch kv_heads queries groups d_head"]
    k: Float[Tensor, "batch kv_heads keys d_head"]
    columns: Float[Tensor, "batch kv_heads keys columns"]
    scratch: Float[Tensor, "2 entries"]


class Chunk:
    """Some heads of some sequences of a call, prepared for the loop over rows."""

    def __init__(self, call: Call, bands: tuple[int, ...], *, values: bool) -> None:
        self.call, self.values = call, values
        self.widths = tuple(sorted({0, *bands}))
        self.slabs = self.double_slabs = self.fused_slabs = 0
        self._prepared: dict[torch.dtype, Operands] = {}

    @cached_property
    def centre(self) -> Float[Tensor, "batch kv_heads 1 d_head"]:
        """The vector to subtract from the keys: their mean.

        It is 0 where a softcap makes the shift matter.
        """
        k, real = self.call.k, self.call.key_padding
        wide = torch.promote_types(k.dtype, torch.float32)
        if self.call.softcap is not None:
            return torch.zeros_like(k[:, :, :1], dtype=wide)
        if real is None:
            return k.mean(dim=2, keepdim=True, dtype=torch.float64).to(wide)
        weight = real.double() / real.sum(dim=1, keepdim=True).clamp(min=1)
        return torch.einsum("bk,bhkd->bhd", weight, k.double())[:, :, None].to(wide)

    @cached_property
    def shift(self) -> PerRow:
        """The change of each row's scores by the centring of the keys."""
        centre = self.centre.double().repeat_interleave(self.call.groups, dim=1).transpose(-1, -2)
        return torch.matmul(self.call.q.double() * self.call.scale, centre)[..., 0]

    @cached_property
    def reach(self) -> PerRow:
        """An upper bound of a row's |score| from the norms."""
        lengths = torch.linalg.vector_norm(self.call.k - self.centre, dim=-1)
        longest = lengths.amax(dim=-1).repeat_interleave(self.call.groups, dim=1)
        reach: Tensor = torch.linalg.vector_norm(self.call.q.to(longest.dtype), dim=-1) * (
            abs(self.call.scale) * longest[..., None]
        )
        return reach if self.call.bias is None else reach + self.call.bias.abs().amax(dim=-1)

    def sums(self) -> Sums:
        """The sums of all rows of the chunk, by the compiled kernel or in slabs.

        The kernel computes them where it is on and applies.
        """
        if fused.applies(self.call, self.widths) and float(self.reach.amax()) <= FLOAT32_REACH:
            self.slabs = self.fused_slabs = 1
            return fused.sums(self.call, self.widths, self.centre[:, :, 0], values=self.values)
        blocks = list(row_blocks(self.call, slab_rows(self.call)))
        strongest = torch.stack([self.reach[:, :, queries].amax() for queries, _ in blocks])
        strong = (strongest > FLOAT32_REACH).tolist()
        self.slabs, self.double_slabs = len(blocks), sum(strong)
        parts = [
            self._slab(queries, keys, self._operands(torch.float64 if wide else torch.float32))
            for (queries, keys), wide in zip(blocks, strong, strict=True)
        ]
        return self._joined(parts)

    def _operands(self, dtype: torch.dtype) -> Operands:
        if dtype not in self._prepared:
            call = self.call
            batch, heads, queries, width = call.q.shape
            kv_heads, keys = call.k.shape[1:3]
            q = call.q.to(dtype).reshape(batch, kv_heads, call.groups, queries, width)
            columns = shared_columns(call.key_positions, first_key(call)).to(dtype)
            columns = columns[:, None].expand(batch, kv_heads, keys, SHARED)
            largest = batch * heads * min(slab_rows(call), queries) * keys
            self._prepared[dtype] = Operands(
                q=(q * call.scale).transpose(2, 3).contiguous(),
                k=call.k.to(dtype) - self.centre.to(dtype),
                columns=torch.cat([columns, call.v.to(dtype)], dim=-1) if self.values else columns.contiguous(),
                scratch=torch.empty(2, largest, dtype=dtype, device=call.q.device),
            )
        return self._prepared[dtype]

    def _slab(self, queries: slice, keys: slice, operands: Operands) -> dict[str, Tensor]:
        """The sums of one run of rows, by name.

        Their axes are batch, kv_heads, rows, groups.
        """
        # Rows that can see nothing get one key, which the mask takes away again.
        block = Block(self.call, queries, keys if keys.stop > keys.start else slice(0, 1))
        scores = _scores(block, operands)
        weights = operands.scratch[1, : scores.numel()].view(scores.shape)
        covered = [(scores[..., run], weights[..., run], mask) for run, mask in hidden(block)]
        for part, _, mask in covered:
            part.masked_fill_(mask, MASKED)
        top = scores.amax(dim=-1, keepdim=True)
        scores.sub_(top).clamp_(min=FLOOR[scores.dtype])
        torch.exp(scores, out=weights)
        for _, part, mask in covered:
            part.masked_fill_(mask, 0.0)
        sums = {
            "top": top[..., 0],
            "square": torch.linalg.vector_norm(weights, dim=-1),
            "spread": torch.mul(scores, weights, out=scores).sum(dim=-1),
            **{f"near {width}": near(weights, block, width) for width in self.widths},
        }
        columns = operands.columns[:, :, block.keys]
        return sums | {name: _product(part, columns[:, :, run]) for name, part, run in sides(weights, block)}

    def _joined(self, parts: list[dict[str, Tensor]]) -> Sums:
        def rows(name: str) -> Tensor:
            joined = torch.cat([part[name] for part in parts], dim=2).double().transpose(2, 3)
            return joined.reshape(*self.call.q.shape[:3], *joined.shape[4:])

        before, after = rows("before"), None if self.call.causal else rows("after")
        product = before if after is None else before + after
        return Sums(
            top=rows("top"),
            mass=product[..., 0],
            first=product[..., 1],
            spread=-rows("spread"),
            square=rows("square").square(),
            near={width: rows(f"near {width}") for width in self.widths},
            before=self._side(before),
            after=None if after is None else self._side(after),
            mixed=product[..., SHARED:] if self.values else None,
        )

    def _side(self, product: Float[Tensor, "batch heads queries columns"]) -> Side:
        return Side(product[..., 0], *mean_and_variance(product, anchors(self.call.key_positions)))


def chunks(call: Call) -> Iterator[tuple[slice, slice]]:
    """Runs of sequences and of key/value heads whose slabs fit the scratch memory."""
    batch, kv_heads = call.q.shape[0], call.k.shape[1]
    entries_per_head = call.groups * min(slab_rows(call), call.q.shape[2]) * call.k.shape[2]
    fit = max(1, SLAB_ENTRIES // entries_per_head)
    heads_at_once = min(kv_heads, fit)
    rows = max(1, fit // kv_heads) if heads_at_once == kv_heads else 1
    for start in range(0, batch, rows):
        for head in range(0, kv_heads, heads_at_once):
            yield slice(start, min(start + rows, batch)), slice(head, min(head + heads_at_once, kv_heads))


def slab_rows(call: Call) -> int:
    """Rows per slab: what fits, within sizes that suit a matrix product."""
    return max(16, min(SLAB_ROWS, SLAB_ENTRIES // (call.groups * call.k.shape[2])))


def _scores(block: Block, operands: Operands) -> Slab:
    """Scores of the block before the mask, relative to the centre of the keys.

    They are in scratch memory.
    """
    q, k, call = operands.q[:, :, block.queries], operands.k[:, :, block.keys], block.call
    batch, kv_heads, rows, groups, width = q.shape
    shape = (batch, kv_heads, rows * groups, k.shape[2])
    flat = operands.scratch[0, : torch.Size(shape).numel()].view(shape)
    torch.matmul(q.view(batch, kv_heads, rows * groups, width), k.transpose(-1, -2), out=flat)
    scores = flat.view(batch, kv_heads, rows, groups, k.shape[2])
    if call.softcap is not None:
        scores.div_(call.softcap).tanh_().mul_(call.softcap)
    if call.bias is not None:
        scores.add_(grouped(call.bias[:, :, block.queries, block.keys], call.groups)).clamp_(min=MASKED)
    return scores


def _product(
    weights: Slab, columns: Float[Tensor, "batch kv_heads keys columns"]
) -> Float[Tensor, "batch kv_heads rows groups columns"]:
    batch, kv_heads, rows, groups, keys = weights.shape
    flat = weights.reshape(batch, kv_heads, rows * groups, keys)
    return torch.matmul(flat, columns).view(batch, kv_heads, rows, groups, -1)
