"""How a number grows with n: as a power or as a logarithm.

Both laws have two free numbers.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.errors import NumericsError, UsageError

# Halvings of the interval that holds the power: its part 2⁻⁸⁰ is below rounding.
_HALVINGS = 80


class Growth(NamedTuple):
    """The power of c nᵖ, and the misfit of both laws.

    A misfit is the root mean square of fit/value − 1.
    """

    exponent: Float[Tensor, "*batch"]
    power_misfit: Float[Tensor, "*batch"]
    log_misfit: Float[Tensor, "*batch"]


def growth(n: Float[Tensor, " sizes"], values: Float[Tensor, "*batch sizes"]) -> Growth:
    r"""Fit $c\,n^p$ and $a + b \ln n$ to positive values.

    Both fits minimise the squares of relative deviations.

    Definition:
        c and p minimise $\sum_k (c\,n_k^p/r_k - 1)^2$; a and b minimise $\sum_k ((a + b \ln n_k)/r_k - 1)^2$. A misfit
        is the square root of the mean of the same squares, so both laws are fitted in the metric in which they are
        scored.
    Properties:
        - a power law is found, without misfit  (tested: test_a_power_is_found)
        - a logarithm is found, without misfit, and is no power  (tested: test_a_logarithm_is_no_power)
        - a factor changes nothing  (tested: test_growth_ignores_a_factor)
        - no other power, and no other logarithm, has a smaller misfit  (tested: test_both_fits_have_the_least_misfit)
    Numerics:
        Float64. With $u_k = n_k^p/r_k$ the best c leaves $K - (\sum u)^2/\sum u^2$ over, which is least where the means
        of $\ln n$ under the weights u and u² agree. The difference of these means is positive for small p and negative
        for large p; bisection finds where it changes sign. A constant has the power 0 and no misfit.
    """
    n, r = n.to(torch.float64), values.to(torch.float64)
    if len(n) < 3:
        raise UsageError(f"a comparison of two laws with two numbers each needs at least 3 sizes, got {len(n)}")
    if not bool((n > 0).all() and (r > 0).all() and torch.isfinite(r).all()):
        raise NumericsError("a law of growth is fitted to positive finite values")
    x, y = n.log(), r.log()
    centred = x - x.mean()
    exponent = _power(centred, y - y.mean(-1, keepdim=True))
    power = torch.exp(exponent[..., None] * centred) / r
    power = power * (power.sum(-1) / power.square().sum(-1))[..., None]
    design = torch.stack((torch.ones_like(x), centred), -1) / r[..., None]
    numbers = torch.linalg.lstsq(design, torch.ones_like(r)[..., None]).solution
    logarithm = (design @ numbers)[..., 0]
    return Growth(exponent, _size(power - 1), _size(logarithm - 1))


def _power(x: Float[Tensor, " sizes"], y: Float[Tensor, "*batch sizes"]) -> Float[Tensor, "*batch"]:
    """The power by bisection, around the slope of the logarithms."""
    start = (y * x).sum(-1) / x.square().sum()
    reach = torch.ones_like(start)
    while not bool(((_slope(start - reach, x, y) >= 0) & (_slope(start + reach, x, y) <= 0)).all()):
        reach = 2 * reach
    low, high = start - reach, start + reach
    for _ in range(_HALVINGS):
        midpoint = (low + high) / 2
        rises = _slope(midpoint, x, y) > 0
        low, high = torch.where(rises, midpoint, low), torch.where(rises, high, midpoint)
    return (low + high) / 2


def _slope(p: Float[Tensor, "*batch"], x: Float[Tensor, " sizes"], y: Float[Tensor, "*batch sizes"]) -> Tensor:
    """The mean of x under the weights u = exp(p x − y), less its mean under u²."""
    exponents = p[..., None] * x - y
    single, double = (torch.softmax(power * exponents, -1) for power in (1, 2))
    return ((single - double) * x).sum(-1)


def _size(deviations: Float[Tensor, "*batch sizes"]) -> Float[Tensor, "*batch"]:
    return deviations.square().mean(-1).sqrt()
