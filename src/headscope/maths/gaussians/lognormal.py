r"""Log-normal numbers: exponentials of Gaussian scores, their ratios and sums.

A softmax divides exponentials by their sum. Where the scores are Gaussian, a ratio of two shares is log-normal and
its moments are known exactly; the sum is not log-normal, and `fenton_wilkinson` is the log-normal nearest by moments.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.errors import NumericsError, UsageError


class Moments(NamedTuple):
    """Mean and variance."""

    mean: float
    variance: float


class LogNormal(NamedTuple):
    """The law of e^X with X normal: mean and variance of X."""

    mean: float
    variance: float


def moments(mean: float, variance: float) -> Moments:
    r"""Mean and variance of the exponential of a normal number.

    Definition:
        $E[e^X] = e^{\mu + \sigma^2/2}$, $\mathrm{Var}(e^X) = (e^{\sigma^2} - 1)\,e^{2\mu + \sigma^2}$.
    Properties:
        - agrees with scipy's lognorm  (tested: test_moments_equal_scipy)
        - agrees with Gauss–Hermite quadrature  (tested: test_moments_equal_quadrature)
    Numerics:
        $e^{\sigma^2} - 1$ by expm1: precise for small variances too. Overflow is an error.
    """
    if not variance >= 0 or not math.isfinite(mean):
        raise UsageError(f"a normal number has a finite mean and a variance ≥ 0, got {mean} and {variance}")
    try:
        return Moments(math.exp(mean + variance / 2), math.expm1(variance) * math.exp(2 * mean + variance))
    except OverflowError:
        raise NumericsError(f"the moments of e^X exceed float64 for mean {mean:.3g}, variance {variance:.3g}") from None


def ratio_moments(
    mean_i: float, mean_j: float, variance_i: float, variance_j: float, covariance: float = 0.0
) -> Moments:
    r"""Mean and variance of the ratio of two softmax shares of Gaussian scores.

    Definition:
        $p_i / p_j = e^{s_i - s_j}$ with $s_i - s_j$ normal, mean $\mu_i - \mu_j$, variance $\sigma_i^2 + \sigma_j^2 -
        2\sigma_{ij}$; then `moments`.
    Properties:
        - agrees with sampled shares within 4 standard errors  (tested: test_ratios_of_sampled_shares)
        - the ratio of a share to itself is 1  (tested: test_ratio_to_itself)
        - mean of p_i/p_j times mean of p_j/p_i is $e^{\sigma^2}$, σ² the variance of the difference: a larger
          variance raises both  (tested: test_both_ratios_grow)
    """
    if not (variance_i >= 0 and variance_j >= 0):
        raise UsageError(f"variances must be at least 0, got {variance_i} and {variance_j}")
    if covariance**2 > variance_i * variance_j * (1 + 1e-12):
        raise UsageError(
            f"a covariance of {covariance} is impossible with the variances {variance_i} and {variance_j}",
            hint="a covariance is the correlation times both standard deviations",
        )
    return moments(mean_i - mean_j, max(variance_i + variance_j - 2 * covariance, 0.0))


def fenton_wilkinson(mean: Float[Tensor, " n"], covariance: Float[Tensor, "n n"]) -> LogNormal:
    r"""The log-normal law with mean and variance of a sum of log-normal numbers.

    The numbers may be correlated.

    Definition:
        For $S = \sum_i e^{X_i}$, X normal with mean μ and covariance Σ: with $m_i = e^{\mu_i + \Sigma_{ii}/2}$ and
        $w = m / \sum m$, $\sigma_S^2 = \ln\left(1 + \sum_{ij} w_i w_j (e^{\Sigma_{ij}} - 1)\right)$ and $\mu_S = \ln
        \sum_i m_i - \sigma_S^2/2$.
    Properties:
        - exact for one summand, and for equal ones  (tested: test_fenton_wilkinson_of_one)
        - mean and variance are those of the sum  (tested: test_fenton_wilkinson_keeps_two_moments)
        - the distance of the distribution functions falls with σ
          (tested: test_fenton_wilkinson_is_good_for_small_variance)
    Numerics:
        Sums of exponentials by their logarithms: no overflow. O(n²).
    Reference:
        Fenton (1960), The sum of log-normal probability distributions in scatter transmission systems.
        https://doi.org/10.1109/TCOM.1960.1097606
    """
    mu, sigma = mean.to(torch.float64), covariance.to(torch.float64)
    if not bool(torch.isfinite(mu).all() and torch.isfinite(sigma).all()):
        raise NumericsError("means and covariances must be finite")
    if not torch.allclose(sigma, sigma.mT, rtol=1e-10, atol=1e-300) or bool((sigma.diagonal() < 0).any()):
        raise UsageError("a covariance is symmetric with a diagonal of at least 0")
    scale = float(sigma.diagonal().max())
    if float(torch.linalg.eigvalsh(sigma).min()) < -1e-9 * max(scale, 1e-300):
        raise UsageError("the covariance has a negative eigenvalue: no numbers have it")
    logs = mu + sigma.diagonal() / 2
    weights = torch.softmax(logs, -1)
    # e^Σ may exceed float64: the largest is taken out and put back as a logarithm.
    top = float(sigma.max())
    if top < 500:
        variance = math.log1p(float(weights @ torch.expm1(sigma) @ weights))
    else:
        variance = top + math.log(float(weights @ torch.exp(sigma - top) @ weights))
    return LogNormal(float(torch.logsumexp(logs, -1)) - variance / 2, variance)
