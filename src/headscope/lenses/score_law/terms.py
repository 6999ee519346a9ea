"""The row variance of the first layer, split into what position and content of query and key contribute."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import Site
from headscope.lenses.figures.layout import place
from headscope.lenses.score_law.seen import Positions, Seen
from headscope.lenses.score_law.tables import Row, number
from headscope.maths.moments import Moments

# Positions that do not enter as a sum.
NOT_ADDED = ("rotary", "relative bias")
PARTS = ("constant", "position", "content")


def position_sums(q: Sequence[Tensor], k: Sequence[Tensor]) -> Positions:
    """Index 0 is the first position that is not left out; padding stands behind the text."""
    n = max(one.shape[1] for one in q)
    total_q = torch.zeros(n, q[0].shape[0], q[0].shape[2], dtype=torch.float64)
    total_k = torch.zeros(n, k[0].shape[0], k[0].shape[2], dtype=torch.float64)
    count = torch.zeros(n, dtype=torch.float64)
    for one, other in zip(q, k, strict=True):
        total_q[: one.shape[1]] += one.double().transpose(0, 1)
        total_k[: other.shape[1]] += other.double().transpose(0, 1)
        count[: one.shape[1]] += 1
    return Positions(total_q, total_k, count)


def term_rows(site: Site, one: Seen) -> Iterator[Row]:
    """The row variance of independent tokens, split by what depends on position; needs two windows."""
    at = one.positions
    if at is None or float(at.count.max() if len(at.count) else 0.0) < 2 or min(one.q.count, one.k.count) < 2:
        return
    groups = site.n_heads // site.n_kv_heads
    of_q = dict(zip(PARTS[1:], _split(at.q, at.count, one.q), strict=True))
    of_q["constant"] = one.q.mean[:, :, None] * one.q.mean[:, None, :]
    of_k = dict(zip(PARTS[1:], (x.repeat_interleave(groups, 0) for x in _split(at.k, at.count, one.k)), strict=True))
    names = [(a, b) for a in PARTS for b in PARTS[1:]]
    values = {f"{a}_{b}": one.scale**2 * (of_q[a] * of_k[b]).sum((-2, -1)) for a, b in names}
    sizes = {f"{a}_{b}": _trace(of_q[a]) * _trace(of_k[b]) for a, b in names}
    total, lengths = (torch.stack(list(x.values())).sum(0) for x in (values, sizes))
    for head in range(site.n_heads):
        for name, value in values.items():
            yield {
                **place(site, head),
                "quantity": name,
                "value": float(value[head]),
                "share": number(float(value[head] / total[head])),
                "null": number(float(sizes[name][head] / lengths[head])),
                "samples": one.q.count,
                "windows": int(at.count.max()),
            }


def _split(
    total: Float[Tensor, "n some_heads d"], count: Float[Tensor, " n"], moments: Moments
) -> tuple[Float[Tensor, "some_heads d d"], Float[Tensor, "some_heads d d"]]:
    r"""Covariance of what the position tells, and of the rest.

    With $S_i$ the centred sum over the $c_i$ windows at position i, $\sum_i S_i S_i^\top$ less the scatter holds only
    products of different windows: over $\sum_i c_i (c_i - 1)$ it is free of the noise of the means.
    """
    centred = (total - count[:, None, None] * moments.mean).transpose(0, 1)
    position = (centred.mT @ centred - moments.scatter) / float((count * (count - 1)).sum())
    return position, moments.covariance() - position


def _trace(x: Float[Tensor, "some_heads d d"]) -> Float[Tensor, " some_heads"]:
    return x.diagonal(dim1=-2, dim2=-1).sum(-1)
