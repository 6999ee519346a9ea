r"""The running sum of outer products of causal linear attention, in O(n).

Definition:
    $y_i = \sum_{j \le i} (a_i \cdot b_j)\, c_j = a_i \sum_{j \le i} b_j^\top c_j$; reversed, over $j \ge i$.
How:
    Chunks of positions: inside a chunk the products $a_i \cdot b_j$ are written down and masked, what lies before
    it comes through the state $\sum_j b_j^\top c_j$. A few chunks are in flight at a time, so memory stays O(n). The
    states add up in float64: a long sum of small terms is where float32 would lose digits.
    The three gradients are running sums again: $\bar a = y(\bar y, c, b)$, and reversed
    $\bar b = y(c, \bar y, a)$, $\bar c = y(b, a, \bar y)$.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

CHUNK = 64
ROWS = 16 * CHUNK  # what is in flight at a time, so that it stays in the cache


def running_sum(
    a: Float[Tensor, "batch groups n width"],
    b: Float[Tensor, "batch others n width"],
    c: Float[Tensor, "batch others n d_value"],
    *,
    reverse: bool = False,
) -> Float[Tensor, "batch groups n d_value"]:
    """The sum of (a · b) c over all b and c up to the place of each a.

    All `others` of a batch count, so that groups share them.

    Properties:
        - equals the masked n × n product at every length  (tested: test_running_sum_is_the_masked_product)
        - its gradients do, and theirs  (tested: test_gradients_of_the_running_sum)
    """
    return _RunningSum.apply(a, b, c, reverse)  # type: ignore[no-any-return, no-untyped-call]


class _RunningSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, c: Tensor, reverse: bool) -> Tensor:
        ctx.save_for_backward(a, b, c)
        ctx.reverse = reverse
        return _summed(a, b, c, reverse)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b, c = ctx.saved_tensors
        need_a, need_b, need_c, _ = ctx.needs_input_grad
        reverse = ctx.reverse
        return (
            running_sum(grad, c, b, reverse=reverse) if need_a else None,
            running_sum(c, grad, a, reverse=not reverse) if need_b else None,
            running_sum(b, a, grad, reverse=not reverse) if need_c else None,
            None,
        )


class Running:
    """The running sum, and the memory for a block of at most ROWS positions.

    Memory is allocated once: an allocation for every block costs as much as the products.
    """

    def __init__(self, state: Float[Tensor, "batch width d_value"]) -> None:
        self.state = state  # float64, changed in place
        self._buffers: dict[str, Tensor] = {}

    def advance(self, a: Tensor, b: Tensor, c: Tensor, *, reverse: bool = False) -> Tensor:
        """The sums at the next positions, or before them if reversed.

        The next call overwrites the result.
        """
        return self._advanced(a, b, c, reverse=reverse)[0]

    def advance_with_totals(self, a: Tensor, b: Tensor, c: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        r"""The sums at the next positions, and the sums of $a_i \cdot b_j$ alone.

        Their state `total` grows in place.

        A column of ones next to c would give the latter too, but products of odd widths are slow.
        """
        mixed, products, rows, columns = self._advanced(a, b, c, reverse=False)
        batch, groups, n, width = a.shape
        inside = products.sum(dim=-1)
        per_chunk = columns.sum(dim=1).view(batch, -1, width)
        before = (per_chunk.cumsum(dim=1) - per_chunk).add_(total.to(a.dtype)[:, None])
        total += per_chunk.double().sum(dim=1)
        inside += torch.bmm(rows, before.reshape(-1, width, 1))[..., 0]
        size = min(n, CHUNK)
        return mixed, inside.view(batch, -1, groups, size).transpose(1, 2).flatten(2)[:, :, :n]

    def _advanced(self, a: Tensor, b: Tensor, c: Tensor, *, reverse: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        batch, groups, n, width = a.shape
        rows, columns, values = (_chunks(x) for x in (a, b, c))
        chunks, size, d_value = len(rows), min(n, CHUNK), c.shape[-1]
        sums = torch.bmm(columns.transpose(1, 2), values, out=self._buffer("sums", a, chunks, width, d_value))
        products = self._buffer("products", a, chunks, rows.shape[1], columns.shape[1])
        torch.bmm(rows, columns.transpose(1, 2), out=products)
        _cut(products, groups, b.shape[1], reverse)
        states = _states(sums.view(batch, -1, width * d_value), self.state.view(batch, 1, -1), reverse)
        mixed = self._buffer("mixed", a, chunks, rows.shape[1], d_value)
        torch.bmm(rows, states.view(-1, width, d_value), out=mixed)
        mixed.baddbmm_(products, values)
        placed = mixed.view(batch, -1, groups, size, d_value).transpose(1, 2).flatten(2, 3)[:, :, :n]
        return placed, products, rows, columns

    def _buffer(self, name: str, like: Tensor, *shape: int) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != shape:
            buffer = self._buffers[name] = like.new_empty(shape)
        return buffer


def _summed(a: Tensor, b: Tensor, c: Tensor, reverse: bool) -> Tensor:
    batch, _, n, width = a.shape
    out = a.new_empty(*a.shape[:3], c.shape[-1])
    together = max(1, ROWS // max(n, 1))  # short sequences share a block, of a long one each has its own
    starts = range(0, n, ROWS)
    for first in range(0, batch, together):
        sequences = slice(first, min(first + together, batch))
        running = Running(a.new_zeros(sequences.stop - first, width, c.shape[-1], dtype=torch.float64))
        for start in reversed(starts) if reverse else starts:
            block = (sequences, slice(None), slice(start, start + ROWS))
            out[block] = running.advance(a[block], b[block], c[block], reverse=reverse)
    return out


def _chunks(x: Tensor) -> Tensor:
    """[batch, groups, n, width] as [batch · chunks, groups · CHUNK, width].

    Zeros fill the end.
    """
    batch, groups, n, width = x.shape
    if n <= CHUNK:
        return x.reshape(batch, groups * n, width)
    if n % CHUNK:
        x = torch.nn.functional.pad(x, (0, 0, 0, -n % CHUNK))
    return x.reshape(batch, groups, -1, CHUNK, width).transpose(1, 2).reshape(-1, groups * CHUNK, width)


def _states(sums: Tensor, state: Tensor, reverse: bool) -> Tensor:
    """The state before each chunk; `state` becomes the state after all chunks.

    A product with a triangle of ones is the fastest way to add up; its last row is the sum of all.
    """
    chunks = sums.shape[1]
    ones = torch.ones(chunks + 1, chunks, dtype=sums.dtype, device=sums.device)
    earlier = ones.tril_(-1)
    if reverse:
        earlier = torch.cat([earlier[:-1].T, earlier[-1:]])
    inside = earlier @ sums
    total = inside[:, -1:].double()
    states = inside[:, :-1].add_(state.to(sums.dtype))
    state += total
    return states if len(states) == 1 else states.contiguous()


def _cut(products: Tensor, groups: int, column_groups: int, reverse: bool) -> None:
    """Set to zero, in place, where the other place is later (reversed: earlier)."""
    chunks, rows, columns = products.shape
    tiles = products
    if groups * column_groups > 1:
        tiles = products.view(chunks, groups, rows // groups, column_groups, columns // column_groups).transpose(2, 3)
    _ = tiles.triu_() if reverse else tiles.tril_()
