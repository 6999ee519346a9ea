"""The row variance of the first layer, split by position and content of query and key."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.core import Site
from headscope.lenses.scores.site_sums import GROUPS, Group, Groups, Positions, SiteSums
from headscope.lenses.shared.plots import place
from headscope.lenses.shared.table import Row, number
from headscope.maths.gaussians.moments import Moments
from headscope.maths.resampling.jackknife import jackknife

# Positions that do not enter as a sum.
NOT_ADDED = ("rotary", "relative bias")
PARTS = ("constant", "position", "content")


def position_sums(q: Sequence[Tensor], k: Sequence[Tensor]) -> Positions:
    """Sums by position; index 0 is the first that is not left out, padding comes last."""
    n = max(queries.shape[1] for queries in q)
    total_q = torch.zeros(n, q[0].shape[0], q[0].shape[2], dtype=torch.float64)
    total_k = torch.zeros(n, k[0].shape[0], k[0].shape[2], dtype=torch.float64)
    count = torch.zeros(n, dtype=torch.float64)
    for queries, keys in zip(q, k, strict=True):
        total_q[: queries.shape[1]] += queries.double().transpose(0, 1)
        total_k[: keys.shape[1]] += keys.double().transpose(0, 1)
        count[: queries.shape[1]] += 1
    return Positions(total_q, total_k, count)


def grouped(q: Sequence[Tensor], k: Sequence[Tensor]) -> Groups:
    """The windows of a batch, assigned to groups in turn."""
    members = []
    for first in range(min(GROUPS, len(q))):
        some_q, some_k = q[first::GROUPS], k[first::GROUPS]
        moments = (Moments.of(torch.cat(list(part), 1)) for part in (some_q, some_k))
        members.append(Group(position_sums(some_q, some_k), *moments))
    return Groups(len(q), tuple(members))


NAMES = [f"{a}_{b}" for a in PARTS for b in PARTS[1:]]


def term_rows(site: Site, site_sums: SiteSums) -> Iterator[Row]:
    """The row variance of independent tokens, split by what depends on position; needs two windows."""
    all_groups = None if site_sums.groups is None else site_sums.groups.without(None)
    if site_sums.groups is None or all_groups is None or not _splits(all_groups):
        return
    values, shares, nulls = _terms(site, site_sums.scale, all_groups)
    left_out = (
        [site_sums.groups.without(index) for index in range(len(site_sums.groups.members))]
        if site_sums.groups.windows > 2
        else []
    )
    without_group = [_terms(site, site_sums.scale, group) for group in left_out if _splits(group)]
    sure = len(without_group) > 1 and len(without_group) == len(left_out)
    ends = {
        name: jackknife(torch.stack([measured, *(terms[index] for terms in without_group)]))[1] if sure else None
        for index, (name, measured) in enumerate((("value", values), ("share", shares)))
    }
    for head in range(site.n_heads):
        for index, name in enumerate(NAMES):
            at = index, head
            cells = {}
            for part, measured, prefix in (("value", values, ""), ("share", shares, "share_")):
                half = ends[part]
                cells[f"{prefix}low"] = None if half is None else number(float(measured[at] - half[at]))
                cells[f"{prefix}high"] = None if half is None else number(float(measured[at] + half[at]))
            yield {
                **place(site, head),
                "quantity": name,
                "value": float(values[at]),
                "share": number(float(shares[at])),
                **cells,
                "null": number(float(nulls[at])),
                "samples": all_groups.q.count,
                "windows": int(all_groups.positions.count.max()),
            }


def _splits(group: Group) -> bool:
    """Whether any position occurs in two windows."""
    count = group.positions.count
    return len(count) > 0 and float(count.max()) >= 2 and min(group.q.count, group.k.count) >= 2


def _terms(site: Site, scale: float, group: Group) -> tuple[Tensor, Tensor, Tensor]:
    """The six parts of the row variance, their shares, and the shares by sizes alone: terms × heads each."""
    groups, at = site.n_heads // site.n_kv_heads, group.positions
    of_q = dict(zip(PARTS[1:], _split(at.q, at.count, group.q), strict=True))
    of_q["constant"] = group.q.mean[:, :, None] * group.q.mean[:, None, :]
    of_k = dict(zip(PARTS[1:], (x.repeat_interleave(groups, 0) for x in _split(at.k, at.count, group.k)), strict=True))
    pairs = [(a, b) for a in PARTS for b in PARTS[1:]]
    values = torch.stack([scale**2 * (of_q[a] * of_k[b]).sum((-2, -1)) for a, b in pairs])
    sizes = torch.stack([_trace(of_q[a]) * _trace(of_k[b]) for a, b in pairs])
    return values, values / values.sum(0), sizes / sizes.sum(0)


def _split(
    total: Float[Tensor, "n some_heads d"], count: Float[Tensor, " n"], moments: Moments
) -> tuple[Float[Tensor, "some_heads d d"], Float[Tensor, "some_heads d d"]]:
    r"""The covariance that positions explain, and the remaining one.

    With $S_i$ the centred sum over the $c_i$ windows at position i, $\sum_i S_i S_i^\top$ less the scatter holds only
    products of different windows: over $\sum_i c_i (c_i - 1)$ it is free of the noise of the means.
    """
    centred = (total - count[:, None, None] * moments.mean).transpose(0, 1)
    position = (centred.mT @ centred - moments.scatter) / float((count * (count - 1)).sum())
    return position, moments.covariance() - position


def _trace(x: Float[Tensor, "some_heads d d"]) -> Float[Tensor, " some_heads"]:
    return x.diagonal(dim1=-2, dim2=-1).sum(-1)
