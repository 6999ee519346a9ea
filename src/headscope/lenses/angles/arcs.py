"""Divergence along arcs between real vectors and its law for random ones, summed over a window."""

from dataclasses import dataclass
from math import pi

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.maths.geometry.sinusoid_fit import sinusoid_residuals
from headscope.maths.geometry.sphere import angle_between, arc_law, kl_divergence, slerp, slerp_weights

# Points of an arc, arcs of a window at most, and angles (from both ends of 0 to π) that are no arc.
POINTS, ARCS, NARROW = 9, 12, 0.05
TIMES = torch.linspace(0, 1, POINTS, dtype=torch.float64)
# Keys that both rows of an arc between rows must see.
KEYS = 4
# What is summed: the divergence and the law at each point, then what a sinusoid leaves of it and of a straight line,
# the angle and the length.
NUMBERS = ("residual", "line", "angle", "length")


@dataclass(frozen=True)
class ArcSums:
    """Sums over arcs: divergences, laws and NUMBERS; and how many arcs there were."""

    sums: Float[Tensor, "sets many"]
    count: Float[Tensor, "sets"]


def stream_arcs(vectors: Float[Tensor, "n d"]) -> ArcSums:
    """Arcs between the vectors of a window: at their own length, and at length 1.

    The mean entry of each is taken off, which no softmax sees; both ends get the geometric mean of their lengths.
    """
    x = vectors.to(torch.float64)
    x = x - x.mean(-1, keepdim=True)
    first, second = arc_ends(torch.arange(len(x)))
    v, w = x[first], x[second]
    size = torch.stack((v.norm(dim=-1), w.norm(dim=-1)))
    has_length = (size > 0).all(0)
    v, w, size = v[has_length], w[has_length], size[:, has_length]
    angle = angle_between(v, w) if len(v) else torch.zeros(0, dtype=torch.float64)
    open_ = (angle > NARROW) & (angle < pi - NARROW)
    v, w, size, angle = v[open_], w[open_], size[:, open_], angle[open_]
    length = torch.stack((size.prod(0).sqrt(), torch.ones_like(angle)))
    a, b = ((length / end_length)[..., None] * vector for end_length, vector in zip(size, (v, w), strict=True))
    moving = slerp(a, b, TIMES) if len(angle) else a[:, :, None]
    return ArcSums(
        _summed(b, moving, angle.expand(2, -1), length), torch.full((2,), float(len(angle)), dtype=torch.float64)
    )


def row_arcs(
    x: Float[Tensor, "n d"],
    score: Float[Tensor, "heads n n"],
    visible: Bool[Tensor, "n n"],
    inside: Bool[Tensor, "n"],
) -> ArcSums:
    """Arcs of attention rows: the query's input moves between two real ones, and its scores with it.

    Queries of the later half, which have keys in common; only those keys.
    """
    centred = x.to(torch.float64) - x.to(torch.float64).mean(-1, keepdim=True)
    at = inside.nonzero()[:, 0]
    first, second = arc_ends(at[len(at) // 2 :])
    common = visible[first] & visible[second]
    usable = (centred[first].norm(dim=-1) > 0) & (centred[second].norm(dim=-1) > 0) & (common.sum(-1) >= KEYS)
    first, second, common = first[usable], second[usable], common[usable]
    angle = angle_between(centred[first], centred[second]) if len(first) else torch.zeros(0, dtype=torch.float64)
    open_ = (angle > NARROW) & (angle < pi - NARROW)
    first, second, common, angle = first[open_], second[open_], common[open_], angle[open_]
    weights = [end_weight[..., None] for end_weight in slerp_weights(angle, TIMES)]
    moving = weights[0] * score[:, first, None] + weights[1] * score[:, second, None]
    target = score[:, second].masked_fill(~common, -torch.inf)
    moving = moving.masked_fill(~common[:, None], -torch.inf)
    lengths = torch.where(common, score[:, second], 0.0)
    lengths = torch.where(common, lengths - lengths.sum(-1, keepdim=True) / common.sum(-1, keepdim=True), 0.0)
    sums = _summed(target, moving, angle.expand(len(score), -1), lengths.norm(dim=-1))
    return ArcSums(sums, torch.full((len(score),), float(len(angle)), dtype=torch.float64))


def arc_ends(at: Int[Tensor, "n"]) -> tuple[Int[Tensor, "arcs"], Int[Tensor, "arcs"]]:
    """Pairs of tokens half the list apart, evenly thinned to at most ARCS pairs."""
    half = len(at) // 2
    starts = torch.arange(0, half, max(1, -(-half // ARCS)))
    return at[starts], at[starts + half]


def _summed(
    target: Float[Tensor, "*sets arcs n"],
    moving: Float[Tensor, "*sets arcs points n"],
    angle: Float[Tensor, "*sets arcs"],
    length: Float[Tensor, "*sets arcs"],
) -> Float[Tensor, "*sets many"]:
    """Divergences, laws and NUMBERS, summed over arcs."""
    if angle.shape[-1] == 0:
        return torch.zeros(*angle.shape[:-1], 2 * POINTS + len(NUMBERS), dtype=torch.float64)
    divergence = kl_divergence(target[..., None, :], moving)
    law = arc_law(target, angle, TIMES)
    residual = sinusoid_residuals(TIMES, divergence, angle)
    line = sinusoid_residuals(TIMES, (1 - TIMES).expand_as(law), angle)
    numbers = torch.stack((residual, line, angle, length), -1)
    return torch.cat((divergence, law, numbers), -1).sum(-2)
