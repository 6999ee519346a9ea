r"""Gaussians in many dimensions, degenerate ones too: fit, condition, map, cut.

Determinants are logarithms from a Cholesky factor, never products. A covariance that is singular has no density; what
needs one raises an error, and what makes sense on the subspace that carries it says the rank
(`pseudo_log_determinant`, `condition(…, singular=True)`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, pi
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.errors import NumericsError, UsageError
from headscope.maths.gaussians.moments import Moments

Shrinkage = Literal["none", "ledoit-wolf", "oas"]

LOG_2PI = log(2 * pi)
_SYMMETRY = 1e-8  # relative to the largest entry: what float32 data accumulated in float64 keeps easily
# Relative to the largest eigenvalue and per dimension: below it an eigenvalue counts as 0.
_ZERO = 1e-13


@dataclass(frozen=True)
class Gaussian:
    r"""A Gaussian N(mean, covariance); leading axes are a batch of them.

    Properties:
        - refuses what is not square, finite and symmetric  (tested: test_a_gaussian_is_checked)
    """

    mean: Float[Tensor, "*batch d"]
    covariance: Float[Tensor, "*batch rows columns"]  # d × d, which is checked here and not only in tests

    def __post_init__(self) -> None:
        shape, d = tuple(self.covariance.shape), self.mean.shape[-1]
        if shape[-2:] != (d, d):
            raise UsageError(f"a mean of {d} numbers needs a covariance of {d} × {d}, got shape {shape}")
        if not bool(torch.isfinite(self.mean).all()) or not bool(torch.isfinite(self.covariance).all()):
            raise NumericsError("the mean or the covariance of a Gaussian holds NaN or Inf")
        size = self.covariance.abs().amax((-2, -1), keepdim=True) if d else torch.zeros(())
        if bool(((self.covariance - self.covariance.mT).abs() > _SYMMETRY * size).any()):
            raise UsageError("a covariance is symmetric; this matrix is not", hint="pass (c + c.mT) / 2 if it is meant")
        object.__setattr__(self, "mean", self.mean.to(torch.float64))
        object.__setattr__(self, "covariance", _symmetric(self.covariance.to(torch.float64)))

    @property
    def d(self) -> int:
        """Number of dimensions."""
        return self.mean.shape[-1]

    def marginal(self, index: Sequence[int]) -> "Gaussian":
        r"""The Gaussian of some of the coordinates, in this order.

        Properties:
            - the density integrated over the others  (tested: test_marginal_is_the_integral)
        """
        coordinates = _indices(index, self.d)
        return Gaussian(self.mean[..., coordinates], self.covariance[..., coordinates[:, None], coordinates])

    def mapped(self, a: Float[Tensor, "*batch out d"], shift: Float[Tensor, "*batch out"] | None = None) -> "Gaussian":
        r"""The Gaussian of $a x + \mathrm{shift}$.

        Definition:
            $N(a\mu + \mathrm{shift},\ a \Sigma a^\top)$; degenerate where a has more rows than columns.
        Properties:
            - what a fit to mapped samples gives  (tested: test_mapping_commutes_with_fitting)
        """
        a = a.to(torch.float64)
        mean = (a @ self.mean.unsqueeze(-1)).squeeze(-1)
        return Gaussian(mean if shift is None else mean + shift, _symmetric(a @ self.covariance @ a.mT))

    def condition(
        self, index: Sequence[int], value: Float[Tensor, "*batch fixed"], *, singular: bool = False
    ) -> "Gaussian":
        r"""The Gaussian of the other coordinates, given those at `index`.

        Definition:
            $\mu_a + \Sigma_{ab}\Sigma_{bb}^{-1}(x_b - \mu_b)$ and
            $\Sigma_{aa} - \Sigma_{ab}\Sigma_{bb}^{-1}\Sigma_{ba}$. With `singular` the pseudo-inverse replaces the
            inverse, and the value must lie on the subspace that carries $x_b$.
        Properties:
            - the ratio of joint and marginal density  (tested: test_conditional_is_the_ratio_of_densities)
            - knowing more never widens: the covariance does not grow  (tested: test_conditioning_narrows)
            - a copy of a coordinate tells no more than it  (tested: test_conditioning_on_a_copy)
            - a value off the subspace is refused  (tested: test_impossible_value_is_refused)
        Numerics:
            Cholesky; with `singular` an eigendecomposition.
        Reference:
            Bishop (2006), Pattern Recognition and Machine Learning, eqs. 2.81 and 2.82.
        """
        fixed_coordinates = _indices(index, self.d)
        free_coordinates = torch.tensor(
            [i for i in range(self.d) if i not in set(fixed_coordinates.tolist())], dtype=torch.long
        )
        cross = self.covariance[..., free_coordinates[:, None], fixed_coordinates]
        gap = value.to(torch.float64) - self.mean[..., fixed_coordinates]
        inner = self.covariance[..., fixed_coordinates[:, None], fixed_coordinates]
        gain = cross @ _pseudo_inverse(inner, gap) if singular else torch.cholesky_solve(cross.mT, cholesky(inner)).mT
        mean = self.mean[..., free_coordinates] + (gain @ gap.unsqueeze(-1)).squeeze(-1)
        return Gaussian(
            mean, _symmetric(self.covariance[..., free_coordinates[:, None], free_coordinates] - gain @ cross.mT)
        )

    def mahalanobis_squared(self, x: Float[Tensor, "*more d"]) -> Float[Tensor, "*more"]:
        r"""$(x - \mu)^\top \Sigma^{-1} (x - \mu)$ of points, for one Gaussian.

        Properties:
            - unchanged by an invertible linear map of points and Gaussian  (tested: test_mahalanobis_ignores_the_basis)
        """
        factor = cholesky(self.covariance)
        gap = (x.to(torch.float64) - self.mean).reshape(-1, self.d)
        whitened: Tensor = torch.linalg.solve_triangular(factor, gap.mT, upper=False)
        return whitened.square().sum(0).reshape(x.shape[:-1])

    def log_density(self, x: Float[Tensor, "*more d"]) -> Float[Tensor, "*more"]:
        r"""Logarithm of the density at points, for one Gaussian.

        Properties:
            - scipy's multivariate_normal  (tested: test_log_density_equals_scipy)
        """
        return -0.5 * (self.mahalanobis_squared(x) + self.d * LOG_2PI + log_determinant(self.covariance))

    def sample(self, count: int, generator: torch.Generator) -> Float[Tensor, "*batch count d"]:
        r"""Independent draws, also of a degenerate Gaussian.

        Properties:
            - mean and covariance within their standard errors  (tested: test_samples_have_its_moments)
            - draws of a degenerate one stay on its subspace  (tested: test_degenerate_samples_stay_on_the_subspace)
        Numerics:
            Through the eigenvectors, which exist for singular covariances too.
        """
        values, vectors = eigen(self.covariance)
        shape = (*self.mean.shape[:-1], count, self.d)
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        return self.mean.unsqueeze(-2) + (noise * values.sqrt().unsqueeze(-2)) @ vectors.mT


def fitted(moments: Moments, shrinkage: Shrinkage = "none", *, singular: bool = False) -> Gaussian:
    r"""The Gaussian with the samples' mean and a covariance estimated from them.

    Definition:
        none: scatter / (n − 1). Otherwise $(1 - \rho) S + \rho\,\frac{\mathrm{tr} S}{d}\,1$ with S = scatter / n and
        ρ from `shrinkage_weight`.
    Properties:
        - too few samples are an error, not a singular matrix  (tested: test_too_few_samples)
        - scikit-learn's LedoitWolf and OAS  (tested: test_shrinkage_equals_scikit_learn)
        - nearer to the truth than the raw covariance when samples are few  (tested: test_shrinkage_pays)
    Reference:
        Ledoit and Wolf (2004), Journal of Multivariate Analysis 88, 365. Chen, Wiesel, Eldar and Hero (2010), Shrinkage
        algorithms for MMSE covariance estimation, eq. 23.
    """
    if shrinkage == "none":
        if moments.count <= moments.d and not singular:
            raise NumericsError(
                f"{moments.count} samples cannot fill a covariance in {moments.d} dimensions: its rank is at most "
                f"{max(moments.count - 1, 0)}",
                hint="take more samples than dimensions, shrink (ledoit-wolf, oas), or ask for singular=True",
            )
        return Gaussian(moments.mean, moments.covariance())
    weight = shrinkage_weight(moments, shrinkage)[..., None, None]
    sample = moments.covariance(ddof=0)
    level = sample.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    eye = torch.eye(moments.d, dtype=torch.float64)
    return Gaussian(moments.mean, (1 - weight) * sample + weight * level * eye)


def shrinkage_weight(moments: Moments, shrinkage: Shrinkage) -> Float[Tensor, "*batch"]:
    r"""Weight of a multiple of the identity in the covariance, between 0 and 1.

    Definition:
        With S = scatter / n, $m = \mathrm{tr} S / d$ and $\delta = |S|_F^2 - d m^2$.
        Ledoit–Wolf: $\min(1, \beta / \delta)$ with $\beta = \frac{1}{n}(\frac{1}{n}\sum_k |c_k|^4 - |S|_F^2)$.
        OAS: $\min(1, \frac{(1 - 2/d)|S|_F^2 + (\mathrm{tr} S)^2}{(n + 1 - 2/d)\,\delta})$ in Chen's paper; scikit-learn
        leaves the terms in 2/d out, and so do we: $\min(1, \frac{|S|_F^2 / d^2 + m^2}{(n + 1)\,\delta / d^2})$.
    Properties:
        - scikit-learn's numbers  (tested: test_shrinkage_equals_scikit_learn)
        - 1 where the sample covariance already is a multiple of the identity  (tested: test_shrinkage_of_a_sphere)
        - vanishes like 1/n  (tested: test_shrinkage_fades)
    Numerics:
        From the merged moments: samples need not be kept.
    Reference:
        As in `fitted`.
    """
    if shrinkage == "none":
        return torch.zeros(moments.mean.shape[:-1], dtype=torch.float64)
    if moments.count < 2:
        raise NumericsError(f"a covariance needs at least 2 samples, got {moments.count}", hint="take more samples")
    n, d = moments.count, moments.d
    sample = moments.covariance(ddof=0)
    level = sample.diagonal(dim1=-2, dim2=-1).mean(-1)
    energy = sample.square().sum((-2, -1))
    distance = (energy - d * level.square()).clamp_min(0.0)
    if shrinkage == "ledoit-wolf":
        noise = (moments.quartic / n - energy) / n
        noise = torch.minimum(noise.clamp_min(0.0), distance)
        weight = noise / torch.where(distance > 0, distance, 1.0)
    elif shrinkage == "oas":
        noise = energy / d**2 + level.square()
        bound = (n + 1) * distance / d**2
        weight = torch.minimum(noise / torch.where(bound > 0, bound, 1.0), torch.ones_like(noise))
    else:
        raise UsageError(f"there is no shrinkage {shrinkage!r}", hint="none, ledoit-wolf or oas")
    # A multiple of the identity is its own target: any weight gives the same matrix.
    return torch.where(distance > 1e-15 * energy, weight, 1.0)


def of_points(points: Float[Tensor, "*batch k d"], probabilities: Float[Tensor, "*batch k"]) -> Gaussian:
    r"""The Gaussian with the moments of a variable that takes k values.

    The embedding of the next token is such a variable.

    Definition:
        $\mu = \sum_i \lambda_i v_i$, $\Sigma = \sum_i \lambda_i v_i v_i^\top - \mu\mu^\top$.
    Properties:
        - the moments of draws  (tested: test_gaussian_of_points_has_their_moments)
        - rank at most k − 1  (tested: test_rank_of_points)
    """
    points, p = points.to(torch.float64), probabilities.to(torch.float64)
    if bool((p < 0).any()) or bool(((p.sum(-1) - 1).abs() > 1e-6).any()):
        raise UsageError("probabilities are at least 0 and sum to 1")
    p = p / p.sum(-1, keepdim=True)
    mean = (p.unsqueeze(-1) * points).sum(-2)
    rooted = p.sqrt().unsqueeze(-1) * (points - mean.unsqueeze(-2))
    return Gaussian(mean, rooted.mT @ rooted)


def cholesky(covariance: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch d d"]:
    """The lower Cholesky factor of a positive definite covariance.

    Where there is none, the error names the smallest eigenvalue.
    """
    factor, failed = torch.linalg.cholesky_ex(covariance.to(torch.float64))
    if bool(failed.any()):
        raise NumericsError(_no_density(covariance))
    # A matrix that is singular up to rounding may pass: its last pivots are rounding, not information.
    pivots = factor.diagonal(dim1=-2, dim2=-1)
    scale = covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0.0).sqrt()
    if bool((pivots <= (_ZERO * covariance.shape[-1]) ** 0.5 * scale).any()):
        raise NumericsError(_no_density(covariance), hint="shrink it, or ask for what is defined on its subspace")
    result: Tensor = factor
    return result


def log_determinant(covariance: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch"]:
    r"""Logarithm of the determinant of a positive definite matrix.

    Properties:
        - numpy's slogdet  (tested: test_log_determinant_equals_slogdet)
        - where the determinant itself would be 0 or infinite in float64  (tested: test_log_determinant_of_many_dims)
        - a singular matrix is an error  (tested: test_singular_has_no_log_determinant)
    Numerics:
        Twice the sum of the logarithms of the Cholesky pivots.
    """
    return 2 * cholesky(covariance).diagonal(dim1=-2, dim2=-1).log().sum(-1)


def eigen(covariance: Float[Tensor, "*batch d d"]) -> tuple[Float[Tensor, "*batch d"], Float[Tensor, "*batch d d"]]:
    """Eigenvalues, smallest first, and eigenvectors in columns.

    Rounding is set to 0; a negative eigenvalue is an error.
    """
    values, vectors = torch.linalg.eigh(covariance.to(torch.float64))
    zero = _ZERO * covariance.shape[-1] * values.abs().amax(-1, keepdim=True)
    if bool((values < -1e3 * zero).any()):
        raise NumericsError(
            f"not a covariance: its eigenvalues reach from {float(values.min()):.3g} to {float(values.max()):.3g}"
        )
    return torch.where(values > zero, values, 0.0), vectors


def rank(covariance: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch"]:
    r"""The number of directions with any variance.

    Properties:
        - that of the factor it was made of  (tested: test_rank_of_points)
    Numerics:
        Eigenvalues above $10^{-13} d$ of the largest count.
    """
    return (eigen(covariance)[0] > 0).sum(-1).to(torch.float64)


def pseudo_log_determinant(
    covariance: Float[Tensor, "*batch d d"],
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    r"""Sum of the logarithms of the nonzero eigenvalues, and their number (the rank).

    Properties:
        - the log-determinant where nothing is zero  (tested: test_pseudo_determinant_of_a_full_matrix)
        - scipy's log_pdet of a singular one  (tested: test_pseudo_determinant_equals_scipy)
        - 0 with rank 0 for the zero matrix  (tested: test_pseudo_determinant_of_nothing)
    """
    values = eigen(covariance)[0]
    nonzero = values > 0
    return torch.where(nonzero, values, 1.0).log().sum(-1), nonzero.sum(-1).to(torch.float64)


def joined(x: Float[Tensor, "*batch samples tokens d"]) -> Float[Tensor, "*batch samples features"]:
    """Sequences as single vectors: token 0's features, then token 1's, and so on."""
    return x.flatten(-2)


def blocks(
    covariance: Float[Tensor, "*batch features features"], tokens: int
) -> Float[Tensor, "*batch tokens tokens d d"]:
    r"""The joint covariance of a sequence in blocks $\Sigma_{ij}$, one per token pair.

    Properties:
        - $\Sigma_{ij} = \Sigma_{ji}^\top$  (tested: test_blocks_are_transposes)
        - `unblocked` is the inverse  (tested: test_blocks_and_back)
    """
    size = covariance.shape[-1]
    if size % tokens:
        raise UsageError(f"{size} features cannot be cut into {tokens} tokens evenly")
    d = size // tokens
    return covariance.reshape(*covariance.shape[:-2], tokens, d, tokens, d).transpose(-3, -2)


def unblocked(parts: Float[Tensor, "*batch tokens tokens d d"]) -> Float[Tensor, "*batch features features"]:
    """The joint covariance of its blocks."""
    tokens, d = parts.shape[-3], parts.shape[-1]
    return parts.transpose(-3, -2).reshape(*parts.shape[:-4], tokens * d, tokens * d)


def map_tokens(joint: Gaussian, linear: Float[Tensor, "out d"], tokens: int) -> Gaussian:
    r"""The joint Gaussian after one linear map on every token.

    Definition:
        $\Sigma_{ij} \to L\,\Sigma_{ij} L^\top$, $\mu_i \to L \mu_i$: the map $1 \otimes L$ on the joint vector.
    Properties:
        - the map of the Kronecker product  (tested: test_map_tokens_is_a_kronecker_product)
    Numerics:
        O(tokens² d³), without forming the Kronecker product.
    """
    linear = linear.to(torch.float64)
    parts = linear @ blocks(joint.covariance, tokens) @ linear.mT
    means = joint.mean.reshape(*joint.mean.shape[:-1], tokens, -1) @ linear.mT
    return Gaussian(means.flatten(-2), _symmetric(unblocked(parts)))


def _symmetric(matrix: Float[Tensor, "*batch d d"]) -> Float[Tensor, "*batch d d"]:
    return (matrix + matrix.mT) / 2


def _indices(index: Sequence[int], d: int) -> Tensor:
    coordinates = [int(i) for i in index]
    if not coordinates or len(set(coordinates)) < len(coordinates) or min(coordinates) < 0 or max(coordinates) >= d:
        raise UsageError(f"coordinates are distinct numbers from 0 to {d - 1}, got {coordinates}")
    return torch.tensor(coordinates, dtype=torch.long)


def _pseudo_inverse(
    covariance: Float[Tensor, "*batch d d"], gap: Float[Tensor, "*batch d"]
) -> Float[Tensor, "*batch d d"]:
    values, vectors = eigen(covariance)
    along = (vectors.mT @ gap.unsqueeze(-1)).squeeze(-1)
    size = gap.abs().amax(-1, keepdim=True)
    if bool(((values == 0) & (along.abs() > 1e-6 * size)).any()):
        raise UsageError("the value lies off the subspace of the Gaussian")
    inverse = torch.where(values > 0, 1 / torch.where(values > 0, values, 1.0), 0.0)
    return (vectors * inverse.unsqueeze(-2)) @ vectors.mT


def _no_density(covariance: Tensor) -> str:
    values = torch.linalg.eigvalsh(covariance.to(torch.float64))
    return (
        f"a covariance of shape {tuple(covariance.shape)} is not positive definite: its smallest eigenvalue is "
        f"{float(values.min()):.3g}, its largest {float(values.max()):.3g}"
    )
