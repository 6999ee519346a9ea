r"""The running sum of outer products that causal linear attention is, in time and memory O(n).

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
IN_FLIGHT = 1 << 20  # numbers of each operand that are in flight at a time


def running_sum(
    a: Float[Tensor, "batch groups n width"],
    b: Float[Tensor, "batch others n width"],
    c: Float[Tensor, "batch others n d_value"],
    *,
    reverse: bool = False,
) -> Float[Tensor, "batch groups n d_value"]:
    """Every a with the b and c up to its own place; the others of a batch all count, so groups share them.

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


def _summed(a: Tensor, b: Tensor, c: Tensor, reverse: bool) -> Tensor:
    batch, groups, n, width = a.shape
    others, d_value = b.shape[1], c.shape[-1]
    out = a.new_empty(batch, groups, n, d_value)
    state = a.new_zeros(batch, 1, width, d_value, dtype=torch.float64)
    per_chunk = batch * max(groups, others) * CHUNK * max(width, d_value)
    step = CHUNK * max(1, IN_FLIGHT // per_chunk)
    starts = range(0, n, step)
    for start in reversed(starts) if reverse else starts:
        here = slice(start, min(start + step, n))
        rows, before, values = (_chunks(x[:, :, here]) for x in (a, b, c))
        sums = before.transpose(-1, -2) @ values
        states, state = _exclusive(sums, state, reverse)
        local = _triangle(rows @ before.transpose(-1, -2), groups, others, reverse)
        mixed = (local @ values).add_(rows @ states.to(a.dtype))
        out[:, :, here] = _unchunked(mixed, groups)[:, :, : here.stop - here.start]
    return out


def _chunks(x: Tensor) -> Tensor:
    """[batch, groups, n, width] as [batch, chunks, groups · CHUNK, width], zeros after the end."""
    batch, groups, n, width = x.shape
    if n < CHUNK:
        return x.reshape(batch, 1, groups * n, width)
    if n % CHUNK:
        x = torch.nn.functional.pad(x, (0, 0, 0, -n % CHUNK))
    return x.reshape(batch, groups, -1, CHUNK, width).transpose(1, 2).reshape(batch, -1, groups * CHUNK, width)


def _unchunked(x: Tensor, groups: int) -> Tensor:
    batch, chunks, rows, width = x.shape
    return x.reshape(batch, chunks, groups, -1, width).transpose(1, 2).reshape(batch, groups, -1, width)


def _exclusive(sums: Tensor, state: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
    """The state before each chunk, and the one after all of them."""
    wide = sums.double()
    if reverse:
        wide = wide.flip(1)
    through = torch.cat([state, wide], dim=1).cumsum(dim=1)
    before = through[:, :-1]
    return (before.flip(1) if reverse else before), through[:, -1:]


def _triangle(products: Tensor, groups: int, others: int, reverse: bool) -> Tensor:
    """Zero where the other place comes later (reversed: earlier)."""
    size = products.shape[-2] // groups
    tile = torch.ones(size, size, dtype=products.dtype, device=products.device)
    tile = tile.triu_() if reverse else tile.tril_()
    return products.mul_(tile.repeat(groups, others))
