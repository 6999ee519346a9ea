r"""Exact moments of the score $x^\top C y$ of two random vectors.

The score is $\langle A x, B y \rangle = x^\top C y$ with $C = A^\top B$.

A pair of Gaussian vectors may be independent, dependent or one and the same vector. Everything here is exact (a
quadratic form of a Gaussian has all its cumulants in closed form); nothing is sampled.
"""

from dataclasses import dataclass
from math import factorial

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.errors import NumericsError, UsageError

_TOLERANCE = 1e-8  # how far below 0 rounding may push an eigenvalue of a covariance, in units of its largest entry


@dataclass(frozen=True)
class GaussianPair:
    r"""Two jointly Gaussian vectors x and y.

    Definition:
        $\mathrm{Cov}(x) = \Sigma_X$, $\mathrm{Cov}(y) = \Sigma_Y$ and `cov_xy` is
        $\Sigma_{XY} = \mathbb{E}[(x - \mu_X)(y - \mu_Y)^\top]$, rows x and columns y; $\Sigma_{YX}$ is its transpose.
    Properties:
        - the joint covariance must be positive semi-definite  (tested: test_impossible_covariances_are_refused)
        - moments of the score ignore the inner basis of a head  (tested: test_projection_is_the_form_of_a_head)
    Numerics:
        Kept in float64. The check is one Cholesky factorisation of the joint covariance.
    """

    mean_x: Float[Tensor, "*batch n"]
    mean_y: Float[Tensor, "*batch m"]
    cov_x: Float[Tensor, "*batch n n"]
    cov_y: Float[Tensor, "*batch m m"]
    cov_xy: Float[Tensor, "*batch n m"]

    def __post_init__(self) -> None:
        for name in ("mean_x", "mean_y", "cov_x", "cov_y", "cov_xy"):
            value: Tensor = getattr(self, name).to(torch.float64)
            if not bool(torch.isfinite(value).all()):
                raise NumericsError(f"{name} of a Gaussian pair holds NaN or Inf")
            object.__setattr__(self, name, value)
        n, m = self.mean_x.shape[-1], self.mean_y.shape[-1]
        shapes = tuple(tuple(c.shape[-2:]) for c in (self.cov_x, self.cov_y, self.cov_xy))
        if shapes != ((n, n), (m, m), (n, m)):
            raise UsageError(
                f"means of {n} and {m} entries need covariances {n} × {n}, {m} × {m} and {n} × {m}, got {shapes}"
            )
        joint = self.joint_covariance
        size = joint.diagonal(dim1=-2, dim2=-1).amax(-1)[..., None, None].clamp_min(1e-300)
        if bool(((joint - joint.mT).abs() > _TOLERANCE * size).any()):
            raise NumericsError("a covariance of a Gaussian pair is not symmetric")
        lifted = joint / size + _TOLERANCE * torch.eye(n + m, dtype=torch.float64)
        if bool((torch.linalg.cholesky_ex(lifted).info != 0).any()):
            raise NumericsError(
                "the joint covariance of a Gaussian pair has a negative eigenvalue",
                hint="estimate its three blocks from the same samples",
            )

    @classmethod
    def independent(
        cls,
        mean_x: Float[Tensor, "*batch n"],
        cov_x: Float[Tensor, "*batch n n"],
        mean_y: Float[Tensor, "*batch m"],
        cov_y: Float[Tensor, "*batch m m"],
    ) -> "GaussianPair":
        """The pair of independent x and y."""
        return cls(mean_x, mean_y, cov_x, cov_y, torch.zeros_like(mean_x[..., :, None] * mean_y[..., None, :]))

    @classmethod
    def identical(cls, mean: Float[Tensor, "*batch n"], cov: Float[Tensor, "*batch n n"]) -> "GaussianPair":
        """The pair of one vector with itself: a token that is matched with itself."""
        return cls(mean, mean, cov, cov, cov)

    @classmethod
    def of_samples(cls, x: Float[Tensor, "samples n"], y: Float[Tensor, "samples m"]) -> "GaussianPair":
        """Means and unbiased covariances of paired samples.

        Row i of x belongs to row i of y.
        """
        if x.shape[0] != y.shape[0] or x.shape[0] < 2:
            raise UsageError(f"a covariance needs at least 2 paired samples, got {x.shape[0]} and {y.shape[0]}")
        x, y = x.to(torch.float64), y.to(torch.float64)
        a, b = x - x.mean(0), y - y.mean(0)
        n = x.shape[0] - 1
        return cls(x.mean(0), y.mean(0), a.mT @ a / n, b.mT @ b / n, a.mT @ b / n)

    def projected(self, w_x: Float[Tensor, "*batch n d"], w_y: Float[Tensor, "*batch m d"]) -> "GaussianPair":
        r"""The pair $(x^\top w_x, y^\top w_y)$, whose form is the identity.

        With the weights of a head it is the pair of its queries and keys.
        """
        w_x, w_y = w_x.to(torch.float64), w_y.to(torch.float64)
        return GaussianPair(
            (self.mean_x[..., None, :] @ w_x)[..., 0, :],
            (self.mean_y[..., None, :] @ w_y)[..., 0, :],
            w_x.mT @ self.cov_x @ w_x,
            w_y.mT @ self.cov_y @ w_y,
            w_x.mT @ self.cov_xy @ w_y,
        )

    @property
    def joint_covariance(self) -> Float[Tensor, "*batch nm nm"]:
        """The covariance of (x, y) stacked."""
        upper = torch.cat((self.cov_x, self.cov_xy), -1)
        lower = torch.cat((self.cov_xy.mT, self.cov_y), -1)
        return torch.cat((upper, lower), -2)

    @property
    def joint_mean(self) -> Float[Tensor, "*batch nm"]:
        """The mean of (x, y) stacked."""
        return torch.cat((self.mean_x, self.mean_y), -1)


def score_mean(form: Float[Tensor, "*batch n m"], pair: GaussianPair) -> Float[Tensor, "*batch"]:
    r"""The mean of $x^\top C y$.

    Definition:
        $\mu_X^\top C \mu_Y + \mathrm{Tr}(C\,\Sigma_{YX})$; true for any law with these moments, not only a Gaussian.
    Properties:
        - the mean over samples  (tested: test_moments_are_those_of_samples)
        - $\Sigma_{YX}$, not $\Sigma_{XY}$  (tested: test_the_cross_covariance_enters_transposed)
        - $\mathrm{Tr}(C\Sigma) + \mu^\top C\mu$ where x = y  (tested: test_identical_vectors)
    Reference:
        Wertich, eq. 6.2, writes $\Sigma_{XY}$; right only where C or $\Sigma_{XY}$ is symmetric.
    """
    form = _checked(form, pair)
    means = (pair.mean_x[..., None, :] @ form @ pair.mean_y[..., :, None])[..., 0, 0]
    return means + (form * pair.cov_xy).sum((-2, -1))


def score_variance(form: Float[Tensor, "*batch n m"], pair: GaussianPair) -> Float[Tensor, "*batch"]:
    r"""The variance of $x^\top C y$ for Gaussian x and y, dependent or not.

    Definition:
        With $a = C\mu_Y$ and $b = C^\top\mu_X$:
        $\mathrm{Tr}(\Sigma_X C \Sigma_Y C^\top) + \mathrm{Tr}(C\Sigma_{YX}C\Sigma_{YX})
        + a^\top\Sigma_X a + b^\top\Sigma_Y b + 2\,a^\top\Sigma_{XY}\,b$.
        The second and the last term vanish where x and y are independent.
    Properties:
        - the variance over samples  (tested: test_moments_are_those_of_samples)
        - equals the second cumulant of the quadratic form  (tested: test_variance_is_the_second_cumulant)
        - $2\,\mathrm{Tr}(S\Sigma S\Sigma) + 4\mu^\top S\Sigma S\mu$, $S = (C + C^\top)/2$, where x = y
          (tested: test_identical_vectors)
    Reference:
        Isserlis (1918), Biometrika 12, 134. Independent case: Wertich, eq. 6.3.
    """
    form = _checked(form, pair)
    a = (form @ pair.mean_y[..., :, None])[..., 0]
    b = (form.mT @ pair.mean_x[..., :, None])[..., 0]
    left = form @ pair.cov_y @ form.mT
    crossed = form @ pair.cov_xy.mT
    total: Tensor = (pair.cov_x * left).sum((-2, -1)) + (crossed * crossed.mT).sum((-2, -1))
    for u, cov, v, weight in ((a, pair.cov_x, a, 1), (b, pair.cov_y, b, 1), (a, pair.cov_xy, b, 2)):
        total = total + weight * (u[..., None, :] @ cov @ v[..., :, None])[..., 0, 0]
    return total


def score_cumulant(form: Float[Tensor, "*batch n m"], pair: GaussianPair, order: int) -> Float[Tensor, "*batch"]:
    r"""The cumulant of any order of $x^\top C y$.

    Definition:
        The score is $g^\top M g$, $g = (x, y)$, $M = \frac12\left[0, C;\ C^\top, 0\right]$;
        with $\Sigma$ and $\mu$ of g:
        $\kappa_r = 2^{r-1}(r-1)!\left[\mathrm{Tr}((M\Sigma)^r) + r\,\mu^\top M(\Sigma M)^{r-1}\mu\right]$.
    Properties:
        - orders 1 and 2 are mean and variance  (tested: test_variance_is_the_second_cumulant)
        - order 4 is that of samples  (tested: test_kurtosis_of_samples)
    Reference:
        Mathai and Provost (1992), Quadratic Forms in Random Variables, section 3.2.
    """
    if order < 1:
        raise UsageError(f"cumulants have orders from 1 on, got {order}")
    form = _checked(form, pair)
    n, m = form.shape[-2:]
    matrix = form.new_zeros(*form.shape[:-2], n + m, n + m)
    matrix[..., :n, n:], matrix[..., n:, :n] = form / 2, form.mT / 2
    step = matrix @ pair.joint_covariance
    power = torch.eye(n + m, dtype=torch.float64).expand_as(step)
    for _ in range(order - 1):
        power = power @ step
    mean = pair.joint_mean
    pull = (mean[..., None, :] @ power @ matrix @ mean[..., :, None])[..., 0, 0]
    trace = (power * step.mT).sum((-2, -1))
    cumulant: Tensor = 2 ** (order - 1) * factorial(order - 1) * (trace + order * pull)
    return cumulant


def score_excess_kurtosis(form: Float[Tensor, "*batch n m"], pair: GaussianPair) -> Float[Tensor, "*batch"]:
    r"""Excess kurtosis of the score, $\kappa_4/\kappa_2^2$: 0 for a normal variable.

    Properties:
        - $6\sum\sigma_i^4/(\sum\sigma_i^2)^2$, six over the participation ratio of C, for standard independent x and y
          (tested: test_kurtosis_is_six_over_the_participation_ratio)
        - that of samples  (tested: test_kurtosis_of_samples)
    Numerics:
        0 where the variance is 0.
    """
    variance = score_cumulant(form, pair, 2)
    scale = torch.where(variance > 0, variance, 1.0).square()
    return torch.where(variance > 0, score_cumulant(form, pair, 4) / scale, 0.0)


def _checked(form: Tensor, pair: GaussianPair) -> Tensor:
    expected = (pair.mean_x.shape[-1], pair.mean_y.shape[-1])
    if tuple(form.shape[-2:]) != expected:
        raise UsageError(f"the form of this pair must be {expected[0]} × {expected[1]}, got {tuple(form.shape[-2:])}")
    if not bool(torch.isfinite(form).all()):
        raise NumericsError(f"a form of shape {tuple(form.shape)} holds NaN or Inf")
    return form.to(torch.float64)
