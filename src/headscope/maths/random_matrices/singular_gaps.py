r"""Gaps between neighbouring singular values, and how far they protect vectors.

The singular values of a random matrix repel one another like the eigenvalues of a real symmetric one: a gap of size ε
times the local mean gap has the density $\frac{\pi^2}{6}\varepsilon$ for small ε.
"""

from functools import cache, lru_cache
from math import pi, sqrt

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from headscope.errors import NumericsError, UsageError
from headscope.maths.random_matrices.marchenko_pastur import MarchenkoPastur


def gaps(sigma: Float[Tensor, "*batch rank"]) -> Float[Tensor, "*batch less"]:
    """Differences of neighbouring singular values, largest pair first, never negative."""
    if sigma.shape[-1] < 2:
        raise UsageError(f"a gap needs two singular values, got {sigma.shape[-1]}")
    if not bool(torch.isfinite(sigma).all()):
        raise NumericsError("singular values hold NaN or Inf")
    return -sigma.to(torch.float64).sort(-1, descending=True).values.diff(dim=-1)


def smallest_gap(sigma: Float[Tensor, "*batch rank"]) -> Float[Tensor, "*batch"]:
    """The smallest difference of two singular values."""
    return gaps(sigma).amin(-1)


@lru_cache(maxsize=256)
def smallest_gap_mean(rows: int, columns: int, variance: float = 1.0) -> float:
    r"""The mean smallest gap of the singular values of a large random matrix.

    Definition:
        Gaps below ε occur like independent events, $\frac{\pi^2}{12}\varepsilon^2\int\rho(s)^3 ds$ of them in the mean,
        ρ the density of the number of singular values. So the smallest gap is Rayleigh distributed with the mean
        $\sqrt{3 / (\pi \int\rho^3)}$. For an n × n matrix with entries of standard deviation σ the integral is
        $3n^2/(\pi^2\sigma^2)$ and the mean $\sqrt{\pi}\,\sigma/n$.
    Properties:
        - $\sqrt\pi\,\sigma/n$ for squares  (tested: test_smallest_gap_of_squares)
        - the mean over Gaussian matrices, square and not  (tested: test_smallest_gap_of_samples)
        - proportional to the standard deviation  (tested: test_smallest_gap_of_squares)
    Numerics:
        Gauss–Legendre with 200 nodes in the angle of the support. A limit law: at n = 16 within 2 %.
    Reference:
        Small gaps of real random matrices: Feng, Tian and Wei (2019), Geom. Funct. Anal. 29, 1794.
    """
    law = MarchenkoPastur(rows, columns, variance)
    p = law.sizes[0]
    if p < 2:
        raise UsageError(f"a {rows} × {columns} matrix has no two singular values")
    low, high = (sqrt(edge) for edge in law.edges)
    nodes, weights = _legendre()
    theta = torch.from_numpy((nodes + 1) * pi / 2)
    s = (low + high) / 2 - (high - low) / 2 * theta.cos()
    measure = torch.from_numpy(weights * pi / 2) * theta.sin() * (high - low) / 2
    cubed = float(((p * law.singular_density(s)) ** 3 * measure).sum())
    return sqrt(3 / (pi * cubed))


@cache
def _legendre() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.polynomial.legendre.leggauss(200)


def rotation_bound(
    sigma: Float[Tensor, "*batch rank"], perturbation: float, square: bool
) -> Float[Tensor, "*batch rank"]:
    r"""Bound on the sine of the angle by which a perturbation turns singular vectors.

    `perturbation` is the norm of the matrix that is added.

    Definition:
        $\sin\theta_i \le 2\|E\|/\delta_i$, $\delta_i$ the distance of $\sigma_i$ to the other singular values and to
        $-\sigma_i$ (to 0 where the matrix is not square); θ is the angle between the stacked vectors (u, v).
    Properties:
        - no perturbation exceeds it  (tested: test_no_rotation_exceeds_the_bound)
    Numerics:
        1 (no protection) where the gap is 0.
    Reference:
        Wedin (1972), BIT 12, 99; the constant 2: Yu, Wang and Samworth (2015), Biometrika 102, 315, applied to the
        symmetric matrix with blocks A and A^T.
    """
    if perturbation < 0:
        raise UsageError(f"the norm of a perturbation is not negative, got {perturbation}")
    values = sigma.to(torch.float64).sort(-1, descending=True).values
    neighbour_gaps = gaps(values)
    edge = (2 if square else 1) * values
    wide = torch.full_like(values[..., :1], torch.inf)
    near = torch.minimum(torch.cat((wide, neighbour_gaps), -1), torch.cat((neighbour_gaps, wide), -1)).minimum(edge)
    return (2 * perturbation / near.clamp_min(1e-300)).clamp_max(1.0)
