r"""Attention over disjoint parts of the map as one differentiable function.

A part (a band, gathered keys) is a set of pairs of a query and a key. Each gives its rows' output and log-sum-exp,
and they merge where the rows lie:

$\text{lse} = \ln(e^{\text{lse}_1} + e^{\text{lse}_2})$,
$\text{out} = e^{\text{lse}_1 - \text{lse}}\, \text{out}_1 + e^{\text{lse}_2 - \text{lse}}\, \text{out}_2$.

The weight of a pair is $p_{ij} = e^{s_{ij} - \text{lse}_i}$ whichever part it lies in. So the backward of each part,
given the merged output and log-sum-exp, is its share of the whole gradient, and nothing of a single part is kept.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from headscope.attention.sparse import kernel

Triple = tuple[Tensor, Tensor, Tensor]


class Part(ABC):
    """Some pairs of a query and a key: their attention and gradients.

    A part serves one sequence.

    Tensors are those of one sequence: q, out and their gradients [heads, queries, width], lse [heads, queries],
    k and v [kv_heads, keys, width].
    """

    @abstractmethod
    def attend(self, sequence: int, qkv: Triple, rows: tuple[Tensor, Tensor], *, fresh: bool) -> None:
        """Write output and log-sum-exp into `rows`.

        Rows that are not `fresh` are merged with their contents.
        """

    @abstractmethod
    def add_gradients(
        self,
        sequence: int,
        qkv: Triple,
        rows: tuple[Tensor, Tensor],
        row_grads: tuple[Tensor, Tensor | None],
        grads: Triple,
    ) -> None:
        """Add this part's share to `grads`, from the merged rows and their gradients."""


def attention_over(
    parts: Sequence[Part],
    q: Float[Tensor, "batch heads queries d_head"],
    k: Float[Tensor, "batch kv_heads keys d_head"],
    v: Float[Tensor, "batch kv_heads keys d_value"],
) -> kernel.Rows:
    """Output and log-sum-exp over the union of disjoint parts, with gradients.

    It needs `kernel.has_flash()`.

    Properties:
        - exact, with gradients of out and lse  (tested: test_parts_equal_the_dense_mask)
    """
    d_value = v.shape[-1]
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in kernel.of_one_width(q, k, v))
    out, lse = _Parts.apply(q, k, v, tuple(parts))  # type: ignore[no-untyped-call]
    return out[..., :d_value], lse


class _Parts(torch.autograd.Function):
    """All parts of all sequences; only inputs and merged rows are kept."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, parts: tuple[Part, ...]) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        out = torch.empty_like(q)
        lse = torch.empty(q.shape[:3], dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)
        for b in range(q.shape[0]):
            for part in parts:
                part.attend(b, (q[b], k[b], v[b]), (out[b], lse[b]), fresh=part is parts[0])
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.parts = parts
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        # The operator's backward expects 0 of a row that sees nothing; no such row has a gradient.
        nothing = lse == -torch.inf
        lse = lse.masked_fill(nothing, 0.0)
        grad_lse = None if grad_lse is None else grad_lse.masked_fill(nothing, 0.0)
        grad_out = torch.zeros_like(out) if grad_out is None else grad_out.contiguous()
        # A key gathers gradients from many blocks: their sum is kept in at least float32, and head by head in memory.
        wide = torch.promote_types(q.dtype, torch.float32)
        grads = tuple(torch.zeros(x.shape, dtype=wide, device=x.device) for x in (q, k, v))
        for b in range(q.shape[0]):
            row_grads = grad_out[b], None if grad_lse is None else grad_lse[b]
            for part in ctx.parts:
                part.add_gradients(
                    b, (q[b], k[b], v[b]), (out[b], lse[b]), row_grads, (grads[0][b], grads[1][b], grads[2][b])
                )
        return (*(g.to(q.dtype) for g in grads), None)
