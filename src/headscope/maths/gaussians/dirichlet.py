r"""The Dirichlet law: the simplest law of random shares, to set beside the rows of an attention pattern.

Shares of independent Gamma numbers in their sum follow it. Rows of a softmax over Gaussian scores do not (they are
logistic-normal), but a fit says how concentrated they are in one number, the sum of the parameters.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.errors import NumericsError, UsageError

_STEPS = 200
_PRECISION = 1e-12


class ShareMoments(NamedTuple):
    """Means and covariances of shares."""

    mean: Float[Tensor, "*batch n"]
    covariance: Float[Tensor, "*batch n n"]


def share_moments(alpha: Float[Tensor, "*batch n"]) -> ShareMoments:
    r"""Means and covariances of Dirichlet shares.

    Definition:
        With $A = \sum \alpha$ and $m = \alpha / A$: mean m, covariance $(\mathrm{diag}(m) - m m^\top)/(A+1)$: the
        Jacobian of a softmax at m, over A + 1.
    Properties:
        - agrees with scipy's dirichlet  (tested: test_share_moments_equal_scipy)
    """
    a = _checked(alpha)
    total = a.sum(-1, keepdim=True)
    m = a / total
    covariance = torch.diag_embed(m) - m.unsqueeze(-1) * m.unsqueeze(-2)
    return ShareMoments(m, covariance / (total.unsqueeze(-1) + 1))


def mean_entropy(alpha: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    r"""Mean Shannon entropy of Dirichlet shares, in nats.

    Definition:
        $E[H] = \psi(A+1) - \sum_i \frac{\alpha_i}{A}\,\psi(\alpha_i + 1)$, ψ the digamma function.
    Properties:
        - agrees with sampled shares within 4 standard errors  (tested: test_mean_entropy_of_sampled_shares)
        - tends to ln n for large equal parameters, to 0 for small ones  (tested: test_limits_of_the_mean_entropy)
    Reference:
        Wolpert and Wolf (1995), Estimating functions of probability distributions from a finite set of samples.
    """
    a = _checked(alpha)
    total = a.sum(-1)
    digamma = torch.special.digamma
    entropy: Tensor = digamma(total + 1) - (a / total.unsqueeze(-1) * digamma(a + 1)).sum(-1)
    return entropy


def fit_by_moments(shares: Float[Tensor, "samples n"]) -> Float[Tensor, " n"]:
    r"""Parameters whose means, and whose sum of variances, are those of the sample.

    Definition:
        $\alpha = A\,\bar{p}$ with $A = (1 - \sum_i \bar{p}_i^2)/\sum_i \mathrm{Var}(p_i) - 1$.
    Properties:
        - recovers the parameters of a large sample  (tested: test_fits_recover_the_parameters)
    Numerics:
        Shares that are 0 are allowed. Rows that do not vary, or vary more than any Dirichlet law, are an error.
    """
    p = _checked_samples(shares)
    mean = p.mean(0)
    spread, room = float(p.var(0).sum()), 1 - float(mean.square().sum())
    if not 0 < spread < room:
        raise NumericsError(
            f"no Dirichlet law has these moments: the variances sum to {spread:.3g}, allowed is 0 to {room:.3g}",
            hint="equal rows have no spread to fit",
        )
    return (room / spread - 1) * mean


def fit_by_likelihood(shares: Float[Tensor, "samples n"]) -> Float[Tensor, " n"]:
    r"""Parameters of the largest likelihood.

    Definition:
        The root of $\psi(A) - \psi(\alpha_i) + \overline{\ln p_i} = 0$, the gradient of the mean log-likelihood.
    Properties:
        - recovers the parameters of a large sample  (tested: test_fits_recover_the_parameters)
        - its gradient vanishes  (tested: test_the_likelihood_has_no_slope_at_the_fit)
    Numerics:
        Newton steps from the moments, O(n) each (diagonal plus rank one), halved where they would leave the positive
        numbers. All shares must be positive.
    Reference:
        Minka (2000), Estimating a Dirichlet distribution.
    """
    p = _checked_samples(shares)
    if bool((p <= 0).any()):
        raise UsageError("the likelihood needs positive shares", hint="fit_by_moments allows zeros")
    logs = p.log().mean(0)
    alpha = fit_by_moments(p).clamp_min(1e-6)
    digamma = torch.special.digamma
    for _ in range(_STEPS):
        gradient = digamma(alpha.sum()) - digamma(alpha) + logs
        if float(gradient.abs().max()) < _PRECISION * (1 + float(logs.abs().max())):
            return alpha
        diagonal, common = -torch.special.polygamma(1, alpha), torch.special.polygamma(1, alpha.sum())
        shift = (gradient / diagonal).sum() / (1 / common + (1 / diagonal).sum())
        step = (gradient - shift) / diagonal
        while bool((alpha - step <= 0).any()):
            step = step / 2
        alpha = alpha - step
    raise NumericsError(
        f"the Dirichlet fit did not settle in {_STEPS} steps; largest slope {float(gradient.abs().max()):.2g}"
    )


def _checked(alpha: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    a = alpha.to(torch.float64)
    if a.shape[-1] == 0 or not bool((a > 0).all() and torch.isfinite(a).all()):
        raise UsageError("the parameters of a Dirichlet law are finite and positive")
    return a


def _checked_samples(shares: Float[Tensor, "samples n"]) -> Float[Tensor, "samples n"]:
    p = shares.to(torch.float64)
    if len(p) < 2 or p.shape[-1] < 2:
        raise UsageError(f"a Dirichlet fit needs at least 2 rows of at least 2 shares, got the shape {tuple(p.shape)}")
    if not bool((p >= 0).all() and ((p.sum(-1) - 1).abs() <= 1e-3).all()):
        raise UsageError("every row must hold shares: non-negative, with the sum 1", hint="leave hidden rows out")
    return p / p.sum(-1, keepdim=True)
