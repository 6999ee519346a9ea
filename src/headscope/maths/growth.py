r"""How a number grows with n: like a power of n, or like a logarithm? Two laws with two free numbers each."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.errors import NumericsError, UsageError


class Growth(NamedTuple):
    """The power of the law c nᵖ, and what each law leaves over: the root mean square of fit/value − 1."""

    exponent: Float[Tensor, "*batch"]
    power_misfit: Float[Tensor, "*batch"]
    log_misfit: Float[Tensor, "*batch"]


def growth(n: Float[Tensor, " sizes"], values: Float[Tensor, "*batch sizes"]) -> Growth:
    r"""Fit $c\,n^p$ and $a + b \ln n$ to positive values, both by least squares of relative deviations.

    Definition:
        p is the slope of $\ln r$ over $\ln n$; a and b minimise $\sum_k ((a + b \ln n_k)/r_k - 1)^2$. A misfit is
        $\sqrt{\langle (f_k/r_k - 1)^2 \rangle_k}$ of either law f.
    Properties:
        - a power law is found, without misfit  (tested: test_a_power_is_found)
        - a logarithm is found, without misfit, and is no power  (tested: test_a_logarithm_is_no_power)
        - a factor changes nothing  (tested: test_growth_ignores_a_factor)
    Numerics:
        Float64. For the power the deviations are those of logarithms, which are the relative ones while they are small.
        A constant has the power 0 and no misfit.
    """
    n, r = n.to(torch.float64), values.to(torch.float64)
    if len(n) < 3:
        raise UsageError(f"two laws of two numbers each are told apart by at least 3 sizes, got {len(n)}")
    if not bool((n > 0).all() and (r > 0).all() and torch.isfinite(r).all()):
        raise NumericsError("a law of growth is fitted to positive finite values")
    x, y = n.log(), r.log()
    centred = x - x.mean()
    exponent = (y * centred).sum(-1) / centred.square().sum()
    power = (y.mean(-1, keepdim=True) + exponent[..., None] * centred).exp()
    design = torch.stack((torch.ones_like(x), centred), -1) / r[..., None]
    numbers = torch.linalg.lstsq(design, torch.ones_like(r)[..., None]).solution
    logarithm = (design @ numbers)[..., 0]
    return Growth(exponent, _size(power / r - 1), _size(logarithm - 1))


def _size(deviations: Float[Tensor, "*batch sizes"]) -> Float[Tensor, "*batch"]:
    return deviations.square().mean(-1).sqrt()
