r"""Columns whose product with weights gives mass and moments of position.

One column gives the mass on the first key.

The variance of a position from $\sum p x^2 - (\sum p x)^2$ loses everything in float32 when a row attends far away
and narrowly, as heads that rest on the first token do. So the moments are taken about several anchors $c_a$ and
read from the one nearest to the row's mean: $|\bar x - c_a|$ is at most half the spacing, and the error of the
standard deviation at most spacing/2 · √(3u) ≈ 10⁻⁵ of the range (u = 2⁻²⁴). They are columns of the
matrix product that mixes the values, and so cost almost nothing.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

ANCHORS = 23
SHARED = 2 + 2 * ANCHORS


def anchors(positions: Int[Tensor, "rows keys"]) -> Float[Tensor, "rows 23"]:
    """Whole positions spread over the range of each row of positions."""
    low, high = positions.amin(dim=1, keepdim=True).double(), positions.amax(dim=1, keepdim=True).double()
    steps = torch.linspace(0.0, 1.0, ANCHORS, device=positions.device, dtype=torch.float64)
    return (low + (high - low) * steps).round()


def shared_columns(positions: Int[Tensor, "rows keys"], first: Int[Tensor, " batch"]) -> Float[Tensor, "batch keys 48"]:
    r"""$[1, \text{is first}, x - c_a, (x - c_a)^2]$ for all anchors, in float64.

    They are the same for every head.
    """
    gap = (positions.double()[..., None] - anchors(positions)[:, None, :]).expand(len(first), -1, -1)
    is_first = torch.nn.functional.one_hot(first, positions.shape[1]).double()[..., None]
    return torch.cat([torch.ones_like(is_first), is_first, gap, gap.square()], dim=-1)


def mean_and_variance(
    product: Float[Tensor, "batch heads queries columns"], centres: Float[Tensor, "rows 23"]
) -> tuple[Float[Tensor, "batch heads queries"], Float[Tensor, "batch heads queries"]]:
    """Mean and variance of the position from the product of weights and columns.

    Both are NaN where all weights are 0.
    """
    mass, first, second = product[..., 0], product[..., 2 : ANCHORS + 2], product[..., ANCHORS + 2 : SHARED]
    per_row = centres[:, None, None, :].expand_as(first)
    rough = per_row[..., 0] + first[..., 0] / mass
    nearest = (per_row - rough[..., None]).abs().nan_to_num(0.0).argmin(dim=-1, keepdim=True)
    shift = first.gather(-1, nearest)[..., 0] / mass
    square = second.gather(-1, nearest)[..., 0] / mass
    return per_row.gather(-1, nearest)[..., 0] + shift, (square - shift.square()).clamp(min=0.0)
