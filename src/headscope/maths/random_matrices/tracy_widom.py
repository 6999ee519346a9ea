r"""The Tracy–Widom law (F₁) of the largest squared singular value, real case."""

from functools import cache
from math import sqrt

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from headscope.errors import NumericsError, UsageError

_NODES = 64
_DEAD = 17.0  # Ai(17) = 8e-22: nothing beyond it counts
_LOWEST = -10.0  # F₁(−10) is 2e-20: 0 below
_BATCH = 512


def survival(s: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    r"""$1 - F_1(s)$, the chance that the law exceeds s.

    The relative accuracy is full, also where the chance is tiny.

    Definition:
        $F_1(s) = \det(1 - K_s)$, $K_s(x, y) = \mathrm{Ai}(x + y + s)$ on $L^2(0, \infty)$.
    Properties:
        - published quantiles  (tested: test_published_quantiles)
        - mean −1.2065335745820, variance 1.607781034581  (tested: test_published_moments)
        - decreasing; 1 and 0 at the ends  (tested: test_survival_is_a_survival_function)
        - $F_1(0) = 0.83190806620295$  (tested: test_published_quantiles)
        - more nodes change nothing at 1e-13  (tested: test_more_nodes_change_nothing)
    Numerics:
        Bornemann's method: Gauss–Legendre with 64 nodes on $[0, 17 - s]$, where the Airy function has died, turns the
        determinant into $\prod_i (1 - \lambda_i)$ of a symmetric matrix;
        $-\mathrm{expm1}\sum\mathrm{log1p}(-\lambda_i)$ keeps small chances. Absolute error 1e-14.
    Reference:
        Ferrari and Spohn (2005), J. Phys. A 38, L557 (the kernel); Bornemann (2010), Math. Comp. 79, 871.
    """
    flat = s.reshape(-1).to(torch.float64).numpy()
    if not bool(np.isfinite(flat).all()):
        raise NumericsError("the Tracy–Widom law needs finite numbers, got NaN or Inf")
    chances = np.concatenate([_survival(flat[i : i + _BATCH]) for i in range(0, len(flat), _BATCH)] or [flat])
    return torch.from_numpy(chances).reshape(s.shape)


def centre_and_scale(rows: int, columns: int, variance: float = 1.0) -> tuple[float, float]:
    r"""Centre m and scale w of the largest square $\sigma_1^2$ of a Gaussian matrix.

    $(\sigma_1^2 - m)/w$ follows the Tracy–Widom law.

    Definition:
        With $r = \sqrt{rows - 1/2}$, $c = \sqrt{columns - 1/2}$, v the variance of an entry:
        $m = v(r + c)^2$, $w = v(r + c)(1/r + 1/c)^{1/3}$.
    Properties:
        - the upper half of the law of samples at 10 × 20 within 0.015  (tested: test_largest_value_of_samples)
        - $4nv$ and $2^{4/3} n^{1/3} v$ for large squares  (tested: test_scale_of_large_squares)
        - chances to exceed it are uniform for random matrices, tiny for a planted direction
          (tested: test_p_values_of_random_matrices_are_uniform, test_p_value_of_a_planted_direction)
    Numerics:
        Johnstone's centring has $\sqrt{rows - 1} + \sqrt{columns}$; the halves are Ma's refinement, whose error falls
        as $min(rows, columns)^{-2/3}$ instead of $^{-1/3}$. The lower tail converges more slowly: at 10 × 20 its
        tenth holds 0.065 of the samples. Tests look at the upper one.
    Reference:
        Johnstone (2001), Annals of Statistics 29, 295; Ma (2012), Bernoulli 18, 322.
    """
    if rows < 1 or columns < 1 or not variance > 0:
        raise UsageError(f"no random matrix is {rows} × {columns} with variance {variance}")
    r, c = sqrt(rows - 0.5), sqrt(columns - 0.5)
    return variance * (r + c) ** 2, variance * (r + c) * (1 / r + 1 / c) ** (1 / 3)


@cache
def _legendre(nodes: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x, weights = np.polynomial.legendre.leggauss(nodes)
    return (x + 1) / 2, weights / 2


def _survival(s: NDArray[np.float64], nodes: int = _NODES) -> NDArray[np.float64]:
    x, weights = _legendre(nodes)
    inside = np.clip(s, _LOWEST, _DEAD - 1e-3)
    length = (_DEAD - inside)[:, None]
    points, root = length * x, np.sqrt(length * weights)
    kernel = _airy(points[:, :, None] + points[:, None, :] + inside[:, None, None])
    values = np.linalg.eigvalsh(root[:, :, None] * kernel * root[:, None, :])
    chance = -np.expm1(np.log1p(-np.minimum(values, 1 - 1e-16)).sum(-1))
    result: NDArray[np.float64] = np.where(s < _LOWEST, 1.0, np.where(s > _DEAD - 1e-3, 0.0, chance))
    return result


def _airy(z: NDArray[np.float64]) -> NDArray[np.float64]:
    # torch is thirty times faster, but for negative arguments it has errors of 1e-6.
    airy: NDArray[np.float64] = torch.special.airy_ai(torch.from_numpy(z)).numpy()
    below = z < 0
    airy[below] = special.airy(z[below])[0]
    return airy
