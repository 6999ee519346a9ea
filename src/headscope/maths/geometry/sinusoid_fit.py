"""The sinusoid of a fixed frequency nearest to a curve, and its residual."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.errors import NumericsError, UsageError


@dataclass(frozen=True)
class Sinusoid:
    """A fitted curve a cos(ωt + b) + c.

    `residual` is the largest deviation over the range of the curve.
    """

    amplitude: float
    phase: float
    offset: float
    frequency: float
    residual: float

    def at(self, t: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """The values of the curve at t."""
        return self.amplitude * torch.cos(self.frequency * t.to(torch.float64) + self.phase) + self.offset


def sinusoid_residuals(
    t: Float[Tensor, " n"], curves: Float[Tensor, "*batch n"], frequency: Float[Tensor, "*some"]
) -> Float[Tensor, "*batch"]:
    r"""Residuals of the best sinusoid of each curve, each with its own frequency.

    Definition:
        The `residual` of `fit_sinusoid`: the largest deviation over the range of the curve.
    Properties:
        - agrees with one fit after the other  (tested: test_many_residuals_are_one_after_the_other)
    """
    t, y = t.to(torch.float64), curves.to(torch.float64)
    turn = frequency.to(torch.float64)[..., None] * t
    basis = torch.stack((turn.cos(), turn.sin(), torch.ones_like(turn)), -1)
    q = torch.linalg.qr(basis).Q
    centred = (y - y.mean(-1, keepdim=True))[..., None]
    largest_deviation = (centred - q @ (q.mT @ centred))[..., 0].abs().amax(-1)
    span = y.amax(-1) - y.amin(-1)
    return torch.where(span > 0, largest_deviation / torch.where(span > 0, span, 1.0), 0.0)


def fit_sinusoid(t: Float[Tensor, " n"], y: Float[Tensor, " n"], frequency: float) -> Sinusoid:
    r"""Fit amplitude, phase and offset by least squares at a fixed frequency.

    Definition:
        $\min_{a,b,c} \sum_k \left(y_k - a \cos(\omega t_k + b) - c\right)^2$, linear in $(a \cos b, -a \sin b, c)$.
    Properties:
        - recovers a sinusoid, residual 0  (tested: test_a_sinusoid_is_found)
        - the residual of a curve that is none stays away from 0  (tested: test_a_parabola_is_no_sinusoid)
    Numerics:
        Orthogonal least squares (QR) in float64, after the mean of the curve is taken out. A constant curve has the
        residual 0.
    """
    t, y = t.to(torch.float64), y.to(torch.float64)
    if len(t) < 4 or t.shape != y.shape:
        raise UsageError(f"a sinusoid needs at least 4 points of t and y, got {len(t)} and {len(y)}")
    if not bool(torch.isfinite(t).all() and torch.isfinite(y).all()):
        raise NumericsError("the curve holds NaN or Inf")
    mean = y.mean()
    basis = torch.stack([torch.cos(frequency * t), torch.sin(frequency * t), torch.ones_like(t)], -1)
    q, r = torch.linalg.qr(basis)
    cosine, sine, offset = torch.linalg.solve_triangular(r, (q.mT @ (y - mean)).unsqueeze(-1), upper=True).squeeze(-1)
    span = float(y.max() - y.min())
    deviations = y - mean - basis @ torch.stack([cosine, sine, offset])
    return Sinusoid(
        amplitude=float(torch.hypot(cosine, sine)),
        phase=float(torch.atan2(-sine, cosine)),
        offset=float(offset + mean),
        frequency=frequency,
        residual=float(deviations.abs().max()) / span if span > 0 else 0.0,
    )
