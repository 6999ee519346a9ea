r"""Gaussians through a transformer block: attention, rectifier and norm.

A sequence of n tokens of width d is one Gaussian vector: a mean of shape [n, d] and a covariance of shape
[n, d, n, d], whose block [i, :, j, :] is $\Sigma_{ij}$. Attention with *constant* weights Λ replaces the tokens by
$\hat{X}_k = \sum_i \Lambda_{ki} X_i$: a linear map, so the result is again one Gaussian, and never a mixture of
Gaussians. A mixture adds densities ($p = \sum_i \lambda_i p_i$: draw i, then a token); attention adds variables. Both
have the same mean, and everything else differs: see `mixture_covariance`.

The weights of real attention depend on the tokens. `feedback_covariance` gives the first term that this adds.

Every function answers in float64.
"""

from math import log, pi, sqrt

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headscope.errors import NumericsError, UsageError

_NODES = 128  # of a Gauss–Legendre rule over a smooth integrand


def mixed_mean(
    weights: Float[Tensor, "*batch queries keys"], mean: Float[Tensor, "*batch keys d"]
) -> Float[Tensor, "*batch queries d"]:
    r"""Mean after attention with constant weights.

    Definition:
        $\hat\mu_k = \sum_i \Lambda_{ki}\,\mu_i$.
    Properties:
        - agrees with sampling  (tested: test_mixing_agrees_with_sampling)
    """
    _finite(weights, "weights")
    _finite(mean, "mean")
    return weights.to(torch.float64) @ mean.to(torch.float64)


def mixed_covariance(
    weights: Float[Tensor, "*batch queries keys"], covariance: Float[Tensor, "*batch keys d keys d"]
) -> Float[Tensor, "*batch queries d queries d"]:
    r"""Covariance after attention with constant weights, without the Kronecker product.

    Definition:
        $\hat\Sigma_{kl} = \sum_{ij} \Lambda_{ki} \Lambda_{lj}\,\Sigma_{ij}$, that is
        $(\Lambda \otimes 1)\,\Sigma\,(\Lambda \otimes 1)^\top$.
    Properties:
        - equals the Kronecker form  (tested: test_mixing_equals_the_kronecker_form)
        - two layers are one with the product of the weights  (tested: test_mixing_twice_multiplies_the_weights)
        - agrees with sampling  (tested: test_mixing_agrees_with_sampling)
    Numerics:
        Two contractions, O(n³ d²); the n·d × n·d matrix Λ ⊗ 1 is never formed.
    """
    _finite(weights, "weights")
    _finite(covariance, "covariance")
    w = weights.to(torch.float64)
    half = torch.einsum("...qi,...iajb->...qajb", w, covariance.to(torch.float64))
    return torch.einsum("...lj,...qajb->...qalb", w, half)


def token_entropies(covariance: Float[Tensor, "*batch n d n d"]) -> Float[Tensor, "*batch n"]:
    r"""Differential entropy of each token, in nats.

    Definition:
        $H(X_k) = \frac{1}{2} \ln\left((2 \pi e)^d\,|\Sigma_{kk}|\right)$.
    Properties:
        - agrees with scipy  (tested: test_entropies_agree_with_scipy)
        - an error where a token has no density  (tested: test_singular_covariances_are_refused)
    """
    d = covariance.shape[-1]
    blocks = torch.diagonal(covariance.to(torch.float64), dim1=-4, dim2=-2).movedim(-1, -3)
    return 0.5 * (d * log(2 * pi * np.e) + _log_determinant(blocks, "the covariance of a token"))


def mutual_informations(covariance: Float[Tensor, "*batch n d n d"]) -> Float[Tensor, "*batch n n"]:
    r"""Mutual information of each pair of tokens, in nats.

    Definition:
        $I(X_k; X_l) = \frac{1}{2} \ln \frac{|\Sigma_{kk}|\,|\Sigma_{ll}|}{|\Sigma_{kl\,\mathrm{joint}}|}$; infinite on
        the diagonal, and wherever one token determines a direction of the other (two equal rows of Λ).
    Properties:
        - unchanged by an invertible map of each token  (tested: test_information_ignores_invertible_maps)
        - agrees with scipy  (tested: test_entropies_agree_with_scipy)
        - infinite where two rows of weights are equal  (tested: test_equal_rows_share_everything)
    Numerics:
        From the canonical correlations ρ: $I = -\frac{1}{2} \sum \ln(1 - \rho^2)$; correlations above
        $1 - 10^{-12}$ count as 1.
    """
    sigma = covariance.to(torch.float64)
    blocks = torch.diagonal(sigma, dim1=-4, dim2=-2).movedim(-1, -3)
    _log_determinant(blocks, "the covariance of a token")
    factor = torch.linalg.cholesky(blocks)
    pairs = sigma.transpose(-3, -2)  # [..., k, l, d, d]
    half = torch.linalg.solve_triangular(factor.unsqueeze(-3), pairs, upper=False)
    white = torch.linalg.solve_triangular(factor.unsqueeze(-4), half.mT, upper=False)
    rho: Tensor = torch.linalg.svdvals(white).clamp(0.0, 1.0)
    information = -0.5 * torch.log1p(-rho.square()).sum(-1)
    return torch.where((rho > 1 - 1e-12).any(-1), torch.inf, information)


def mixture_covariance(
    weights: Float[Tensor, "*batch queries keys"],
    mean: Float[Tensor, "*batch keys d"],
    covariance: Float[Tensor, "*batch keys d d"],
) -> Float[Tensor, "*batch queries d d"]:
    r"""Covariance of a *mixture* of Gaussians, which attention does not produce.

    Definition:
        $\sum_i \lambda_i (\Sigma_i + \mu_i \mu_i^\top) - \mu \mu^\top$ with $\mu = \sum_i \lambda_i \mu_i$: the spread
        within the parts and the spread between their means. The average of variables has
        $\sum_{ij} \lambda_i \lambda_j \Sigma_{ij}$ instead (`mixed_covariance`), in which the means do not enter.
    Properties:
        - agrees with sampling  (tested: test_a_mixture_is_wider_than_an_average)
        - never below that of the average  (tested: test_a_mixture_is_wider_than_an_average)
    """
    shares, mu, sigma = (t.to(torch.float64) for t in (weights, mean, covariance))
    if bool((shares < 0).any()) or bool(((shares.sum(-1) - 1).abs() > 1e-9).any()):
        raise UsageError("the shares of a mixture must be at least 0 and sum to 1")
    centre = shares @ mu
    second = torch.einsum("...ka,...kb->...kab", mu, mu) + sigma
    within = torch.einsum("...qk,...kab->...qab", shares, second)
    return within - torch.einsum("...qa,...qb->...qab", centre, centre)


def feedback_covariance(form: Float[Tensor, "*batch d d"], tokens: int) -> Float[Tensor, "*batch d d"]:
    r"""Covariance of an attention output when the tokens make the weights.

    It is the first order in the scores.

    Definition:
        For n independent tokens $x_j \sim N(0, 1)$ and scores $s_{ij} = x_i C x_j^\top$ the output
        $\sum_j \mathrm{softmax}(s_i)_j\,x_j$ has covariance
        $\frac{1}{n} 1 + \frac{n-1}{n^2}(C + C^\top) + O(C^2)$ (the same between any two outputs). Constant weights 1/n
        give the first term; the second is a fourth moment of the tokens, and its share of the first,
        $(1 - \frac{1}{n})(C + C^\top)$, does not vanish as n grows: it vanishes with the scores.
    Properties:
        - agrees with sampling  (tested: test_feedback_agrees_with_sampling)
    """
    if tokens < 1:
        raise UsageError(f"attention needs at least 1 token, got {tokens}")
    c = form.to(torch.float64)
    eye = torch.eye(c.shape[-1], dtype=torch.float64)
    return eye / tokens + (tokens - 1) / tokens**2 * (c + c.mT)


def rectified_moments(
    mean: Float[Tensor, "*batch"], variance: Float[Tensor, "*batch"]
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    r"""Mean and variance of max(X, 0) for X ~ N(μ, σ²).

    Definition:
        With $a = \mu/\sigma$: mean $\mu \Phi(a) + \sigma \varphi(a)$, second moment
        $(\mu^2 + \sigma^2) \Phi(a) + \mu \sigma \varphi(a)$. Where σ = 0 it is max(μ, 0) with variance 0.
    Properties:
        - agrees with quadrature  (tested: test_rectified_moments_agree_with_quadrature)
    """
    mu, sd = _normal(mean, variance)
    first, second = _rectified(mu, sd)
    return first, (second - first.square()).clamp_min(0.0)


def rectified_covariance(
    mean: Float[Tensor, "*batch d"], covariance: Float[Tensor, "*batch d d"]
) -> Float[Tensor, "*batch d d"]:
    r"""Covariance of max(X, 0), coordinate by coordinate, for X ~ N(μ, Σ).

    Definition:
        By Price's theorem the second derivative of $E[X_i^+ X_j^+]$ in $c = \Sigma_{ij}$ is the density of
        $(X_i, X_j)$ at (0, 0). Twice integrated, with $a = \mu_i/\sigma_i$, $b = \mu_j/\sigma_j$, $c = \sigma_i
        \sigma_j \sin\theta_c$: $\mathrm{Cov} = c\,\Phi(a) \Phi(b) + \frac{\sigma_i \sigma_j}{2 \pi}
        \int_0^{\theta_c} (\sin\theta_c - \sin\theta)\,e^{-(a^2 - 2 a b \sin\theta + b^2)/(2 \cos^2\theta)} d\theta$.
    Properties:
        - the arc-cosine kernel where the means are 0  (tested: test_rectified_covariance_is_the_arc_cosine_kernel)
        - its diagonal is the variance  (tested: test_rectified_covariance_has_the_variance_on_its_diagonal)
        - agrees with two-dimensional quadrature  (tested: test_rectified_covariance_agrees_with_quadrature)
    Numerics:
        Gauss–Legendre with 128 nodes over a bounded smooth integrand; coordinates of variance 0 have covariance 0.
    Reference:
        Price (1958), IRE Trans. Inf. Theory 4, 69; Cho and Saul (2009), Kernel methods for deep learning.
    """
    sigma = covariance.to(torch.float64)
    mu, sd = _normal(mean, torch.diagonal(sigma, dim1=-2, dim2=-1))
    scale = sd.unsqueeze(-1) * sd.unsqueeze(-2)
    sine = torch.where(scale > 0, sigma / torch.where(scale > 0, scale, 1.0), 0.0)
    if bool((sine.abs() > 1 + 1e-9).any()):
        raise NumericsError("a correlation above 1: the covariance is not positive semi-definite")
    sine = sine.clamp(-1.0, 1.0)
    ratio = torch.where(sd > 0, mu / torch.where(sd > 0, sd, 1.0), 0.0)
    a, b = ratio[..., :, None, None], ratio[..., None, :, None]
    nodes, shares = _legendre(0.0, 1.0)
    end = torch.asin(sine).unsqueeze(-1)
    theta = end * nodes
    exponent = -(a.square() - 2 * a * b * torch.sin(theta) + b.square()) / (2 * torch.cos(theta).square())
    integral: Tensor = ((sine.unsqueeze(-1) - torch.sin(theta)) * exponent.exp() * shares).sum(-1) * end[..., 0]
    cdf: Tensor = torch.special.ndtr(ratio)
    joint = cdf.unsqueeze(-1) * cdf.unsqueeze(-2)
    return scale * (sine * joint + integral / (2 * pi))


def gelu_moments(
    mean: Float[Tensor, "*batch"], variance: Float[Tensor, "*batch"]
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    r"""Mean and variance of GELU(X) = X Φ(X) for X ~ N(μ, σ²).

    Definition:
        The mean is closed: $\mu\,\Phi(r) + \frac{\sigma^2}{\sqrt{1 + \sigma^2}}\,\varphi(r)$ with
        $r = \mu / \sqrt{1 + \sigma^2}$. The second moment is that of max(X, 0) plus the integral of
        $x^2 \Phi(x)^2 - (x^+)^2$, which is negligible beyond |x| = 10.
    Properties:
        - agrees with quadrature  (tested: test_gelu_moments_agree_with_quadrature)
    Numerics:
        Gauss–Legendre with 128 nodes on each side of 0, over the part of [−10, 10] within 12 standard deviations.
    """
    mu, sd = _normal(mean, variance)
    width = (1 + sd.square()).sqrt()
    r = mu / width
    first = mu * torch.special.ndtr(r) + sd.square() / width * _density(r)
    _, second = _rectified(mu, sd)
    safe = torch.where(sd > 0, sd, 1.0)
    for low, high in ((-10.0, 0.0), (0.0, 10.0)):
        left = (mu - 12 * sd).clamp(low, high).unsqueeze(-1)
        right = (mu + 12 * sd).clamp(low, high).unsqueeze(-1)
        nodes, shares = _legendre(0.0, 1.0)
        x = left + (right - left) * nodes
        gap = (x * torch.special.ndtr(x)).square() - x.clamp_min(0.0).square()
        weight = _density((x - mu.unsqueeze(-1)) / safe.unsqueeze(-1)) / safe.unsqueeze(-1)
        second = second + (gap * weight * shares).sum(-1) * (right - left)[..., 0]
    second = torch.where(sd > 0, second, (mu * torch.special.ndtr(mu)).square())
    return first, (second - first.square()).clamp_min(0.0)


def layer_normed_covariance(covariance: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch d d"]:
    r"""Covariance of LayerNorm(X) for X ~ N(m·1, Σ).

    LayerNorm removes the mean over the coordinates and sets the length to √d.

    Definition:
        With $z = M X$, M = 1 − 11ᵀ/d, and $\lambda$ the eigenvalues of $M \Sigma M$: in the eigenbasis
        $d\,E[z_i^2 / |z|^2] = d\,\lambda_i \int_0^\infty (1 + 2 t \lambda_i)^{-1} \prod_k (1 + 2 t \lambda_k)^{-1/2}
        dt$, off the diagonal 0. The mean of LayerNorm(X) is 0.
    Properties:
        - isotropic tokens give d/(d−1)·M  (tested: test_layer_norm_of_isotropic_tokens)
        - its trace is d: every token has length √d, not 1  (tested: test_layer_normed_tokens_have_length_sqrt_d)
        - agrees with sampling  (tested: test_layer_norm_agrees_with_sampling)
    Numerics:
        Trapezoid rule in ln t (step 1/4, double-exponential accuracy), eigenvalues below $10^{-13}$ of the largest
        count as 0. The small ε in the denominator of an implementation is left out.
    """
    _finite(covariance, "covariance")
    d = covariance.shape[-1]
    centre = torch.eye(d, dtype=torch.float64) - 1.0 / d
    values, vectors = torch.linalg.eigh(centre @ covariance.to(torch.float64) @ centre)
    top = values[..., -1:]
    if bool((top <= 0).any()):
        raise NumericsError("LayerNorm of tokens whose coordinates are all equal: there is no length to divide by")
    values = values / top
    if bool((values < -1e-9).any()):
        raise NumericsError("the covariance is not positive semi-definite")
    values = torch.where(values > 1e-13, values, 0.0)
    step = 0.25
    t = torch.arange(-45.0, 130.0, step, dtype=torch.float64).exp()
    grown = 2 * t.unsqueeze(-1) * values.unsqueeze(-2)  # [..., t, d]
    common = torch.exp(-0.5 * torch.log1p(grown).sum(-1, keepdim=True)) * t.unsqueeze(-1) * step
    shares = (values.unsqueeze(-2) / (1 + grown) * common).sum(-2)
    return d * torch.einsum("...ia,...a,...ja->...ij", vectors, shares, vectors)


def _rectified(mu: Tensor, sd: Tensor) -> tuple[Tensor, Tensor]:
    """First and second moment of max(X, 0)."""
    a = torch.where(sd > 0, mu / torch.where(sd > 0, sd, 1.0), torch.inf * torch.sign(mu) * (mu != 0))
    a = torch.nan_to_num(a, nan=0.0, posinf=1e3, neginf=-1e3)
    cdf, pdf = torch.special.ndtr(a), _density(a)
    return mu * cdf + sd * pdf, (mu.square() + sd.square()) * cdf + mu * sd * pdf


def _normal(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    _finite(mean, "mean")
    _finite(variance, "variance")
    if bool((variance < 0).any()):
        raise NumericsError(f"a variance is negative: {float(variance.min()):.3g}")
    return mean.to(torch.float64), variance.to(torch.float64).sqrt()


def _density(x: Tensor) -> Tensor:
    return torch.exp(-0.5 * x.square()) / sqrt(2 * pi)


def _legendre(low: float, high: float) -> tuple[Tensor, Tensor]:
    nodes, shares = np.polynomial.legendre.leggauss(_NODES)
    half = (high - low) / 2
    return torch.from_numpy(low + half * (nodes + 1)), torch.from_numpy(shares * half)


def _log_determinant(matrix: Tensor, matrix_name: str) -> Tensor:
    factor, info = torch.linalg.cholesky_ex(matrix)
    diagonal = torch.diagonal(factor, dim1=-2, dim2=-1)
    scale = torch.diagonal(matrix, dim1=-2, dim2=-1).amax(-1, keepdim=True).clamp_min(1e-300).sqrt()
    if bool((info != 0).any()) or bool((diagonal < 1e-8 * scale).any()):
        raise NumericsError(f"{matrix_name} is singular or not positive definite, so it has no density")
    return 2 * diagonal.log().sum(-1)


def _finite(x: Tensor, tensor_name: str) -> None:
    if not bool(torch.isfinite(x).all()):
        raise NumericsError(f"{tensor_name} of shape {tuple(x.shape)} holds NaN or Inf")
