r"""Tests of normality: skewness and kurtosis, per coordinate and of all together.

All of them are for independent samples. Where neighbours correlate by $r$, the variance of a skewness grows by a factor
$\sum_t r_t^3$ and that of a kurtosis by $\sum_t r_t^4$ (Lobato and Velasco 2004, Econometric Theory 20, 671), so rows
that are some distance apart behave nearly as independent ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from headscope.errors import UsageError
from headscope.maths.linear_algebra.symmetric import gram_matrix

Array = NDArray[np.float64]

# Below it the approximation of the kurtosis test does not hold (Anscombe and Glynn).
FEWEST = 20


@dataclass(frozen=True)
class NormalityTest:
    """A statistic, its mean over Gaussian samples of the same number, and their gap."""

    value: float
    expected: float
    z: float
    p: float


def skewness(x: Float[Tensor, "samples d"]) -> tuple[NormalityTest, ...]:
    r"""Skewness $m_3 / m_2^{3/2}$ of each coordinate, and D'Agostino's test.

    Properties:
        - scipy's skewtest; z is standard normal for Gaussian samples  (tested: test_marginal_tests_of_gaussians)
    Reference:
        D'Agostino (1970), Transformation to normality of the null distribution of g1, Biometrika 57, 679.
    """
    samples = _samples(x)
    skew_test = stats.skewtest(samples)
    return _each(stats.skew(samples), 0.0, skew_test.statistic, skew_test.pvalue)


def excess_kurtosis(x: Float[Tensor, "samples d"]) -> tuple[NormalityTest, ...]:
    r"""Excess kurtosis $m_4 / m_2^2 - 3$ of each coordinate, with its test.

    The test is the one of Anscombe and Glynn.

    Properties:
        - scipy's kurtosistest; z is standard normal for Gaussian samples  (tested: test_marginal_tests_of_gaussians)
    Reference:
        Anscombe and Glynn (1983), Distribution of the kurtosis statistic b2 for normal samples, Biometrika 70, 227.
    """
    samples = _samples(x)
    kurtosis_test = stats.kurtosistest(samples)
    return _each(stats.kurtosis(samples), -6.0 / (len(samples) + 1), kurtosis_test.statistic, kurtosis_test.pvalue)


def omnibus_p(
    skew: Float[Tensor, "*rows"], tails: Float[Tensor, "*rows"], n: Float[Tensor, "*rows"]
) -> Float[Tensor, "*rows"]:
    r"""p-values of D'Agostino and Pearson's test, of many sets of samples at once.

    Definition:
        From the skewness $m_3/m_2^{3/2}$, the excess kurtosis and the number of samples of each set: the two z of
        `skewness` and `excess_kurtosis`, and $p = e^{-(z_1^2 + z_2^2)/2}$ ($\chi^2$ with two degrees of freedom).
    Properties:
        - scipy's normaltest  (tested: test_omnibus_equals_scipy)
    Reference:
        D'Agostino and Pearson (1973), Tests for departure from normality, Biometrika 60, 613.
    """
    y = skew * ((n + 1) * (n + 3) / (6 * (n - 2))).sqrt()
    beta = 3 * (n * n + 27 * n - 70) * (n + 1) * (n + 3) / ((n - 2) * (n + 5) * (n + 7) * (n + 9))
    w2 = (2 * (beta - 1)).sqrt() - 1
    first = torch.asinh(y / (2 / (w2 - 1)).sqrt()) / (0.5 * w2.log()).sqrt()
    spread = 24 * n * (n - 2) * (n - 3) / ((n + 1).square() * (n + 3) * (n + 5))
    x = (tails + 6 / (n + 1)) / spread.sqrt()
    lopsided = 6 * (n * n - 5 * n + 2) / ((n + 7) * (n + 9)) * (6 * (n + 3) * (n + 5) / (n * (n - 2) * (n - 3))).sqrt()
    a = 6 + 8 / lopsided * (2 / lopsided + (1 + 4 / lopsided.square()).sqrt())
    denominator = 1 + x * (2 / (a - 4)).sqrt()
    root = denominator.sign() * ((1 - 2 / a) / denominator.abs()) ** (1 / 3)
    second = (1 - 2 / (9 * a) - root) / (2 / (9 * a)).sqrt()
    return torch.exp(-(first.square() + second.square()) / 2)


def mardia_skewness(x: Float[Tensor, "samples d"]) -> NormalityTest:
    r"""Mardia's skewness in d dimensions.

    Definition:
        $b_1 = \frac{1}{n^2} \sum_{ij} (c_i^\top S^{-1} c_j)^3$ with $S$ = scatter / n. For Gaussian samples
        $\frac{n}{6} b_1 \frac{(d+1)(n+1)(n+3)}{n((n+1)(d+1) - 6)}$ is about $\chi^2$ with $d(d+1)(d+2)/6$ degrees of
        freedom; z is the standard normal with the same upper tail.
    Properties:
        - unchanged by invertible maps; level for Gaussian samples  (tested: test_mardia_of_gaussians)
        - 0 for symmetric samples  (tested: test_mardia_known_values)
    Numerics:
        Third moments of the whitened samples, O(n d³): the n × n matrix is not formed.
    Reference:
        Mardia (1974), Applications of some measures of multivariate skewness and kurtosis, Sankhyā B 36, 115.
    """
    y, n, d = _whitened(x)
    third = torch.einsum("ni,nj,nk->ijk", y, y, y) / n
    value = float(third.square().sum())
    freedom = d * (d + 1) * (d + 2) / 6
    statistic = value * (d + 1) * (n + 1) * (n + 3) / (6 * ((n + 1) * (d + 1) - 6))
    expected = 6 * ((n + 1) * (d + 1) - 6) * freedom / ((d + 1) * (n + 1) * (n + 3))
    return NormalityTest(value, expected, _normal_of_chi_square(statistic, freedom), _tail(statistic, freedom))


def mardia_kurtosis(x: Float[Tensor, "samples d"]) -> NormalityTest:
    r"""Mardia's kurtosis in d dimensions.

    Definition:
        $b_2 = \frac{1}{n} \sum_i (c_i^\top S^{-1} c_i)^2$; mean $d(d+2)\frac{n-1}{n+1}$ and variance
        $\frac{8 d (d+2) (n-3)(n-d-1)(n-d+1)}{(n+1)^2 (n+3)(n+5)}$ for Gaussian samples, p two-sided.
    Properties:
        - unchanged by invertible maps; level for Gaussian samples  (tested: test_mardia_of_gaussians)
        - samples on a sphere have d²  (tested: test_mardia_known_values)
    Reference:
        As in `mardia_skewness`.
    """
    y, n, d = _whitened(x)
    value = float(y.square().sum(-1).square().mean())
    expected = d * (d + 2) * (n - 1) / (n + 1)
    variance = 8 * d * (d + 2) * (n - 3) * (n - d - 1) * (n - d + 1) / ((n + 1) ** 2 * (n + 3) * (n + 5))
    z = (value - expected) / variance**0.5
    return NormalityTest(value, expected, z, float(2 * stats.norm.sf(abs(z))))


def relative_kurtosis(
    x: Float[Tensor, "samples d"], sizes: Sequence[int]
) -> list[tuple[float, Float[Tensor, " samples"]]]:
    r"""Mardia's kurtosis of the first k coordinates over its Gaussian value, less 1.

    `sizes` lists the values of k.

    Definition:
        $b_2 / (k(k+2)\frac{n-1}{n+1}) - 1$: the excess kurtosis as a part of its Gaussian value; of one coordinate a
        third of the usual excess kurtosis. With it goes how much each sample moves it (to first order, up to its mean):
        $(D_i^2 - 2 y_i^\top A y_i - 4 m^\top y_i)$ over the same, where $y$ are the whitened samples,
        $D_i = |y_i|^2$, $A = \overline{D y y^\top}$ and $m = \overline{D y}$.
    Properties:
        - Mardia's kurtosis over its expectation  (tested: test_relative_kurtosis_is_mardias)
        - the kurtosis of the radius of an elliptical law, for every k  (tested: test_relative_kurtosis_of_a_mixture)
        - the influence is the derivative by a sample's weight  (tested: test_influence_on_the_kurtosis)
    Numerics:
        One Cholesky factor for all sizes: its first k rows whiten the first k coordinates. Few samples per dimension
        understate heavy tails, since a far sample is in the covariance that it is measured by.
    Reference:
        As in `mardia_skewness`. Hampel (1974), Journal of the American Statistical Association 69, 383 (influence).
    """
    y, n, _ = _whitened(x[:, : max(sizes)])
    excess_and_influence = []
    for k in sizes:
        part = y[:, :k]
        squares = part.square().sum(-1)
        fourth = gram_matrix(squares.sqrt()[:, None] * part) / n
        third = squares @ part / n
        moved = squares.square() - 2 * torch.linalg.vecdot(part @ fourth, part) - 4 * part @ third
        expected = k * (k + 2) * (n - 1) / (n + 1)
        excess_and_influence.append((float(squares.square().mean()) / expected - 1, moved / expected))
    return excess_and_influence


def _samples(x: Float[Tensor, "samples d"]) -> Array:
    if len(x) < FEWEST:
        raise UsageError(f"{len(x)} samples are too few for a test of normality: at least {FEWEST}")
    return x.to(torch.float64).numpy()


def _each(values: Array, expected: float, z: Array, p: Array) -> tuple[NormalityTest, ...]:
    cells = zip(values.tolist(), z.tolist(), p.tolist(), strict=True)
    return tuple(NormalityTest(value, expected, z_score, p_value) for value, z_score, p_value in cells)


def _whitened(x: Float[Tensor, "samples d"]) -> tuple[Float[Tensor, "samples d"], int, int]:
    samples = torch.from_numpy(_samples(x))
    if len(x) < x.shape[1] + 2:
        raise UsageError(f"{len(x)} samples in {x.shape[1]} dimensions are too few for a test: two more are needed")
    c = samples - samples.mean(0)
    factor = torch.linalg.cholesky(gram_matrix(c) / len(c))
    y: Tensor = torch.linalg.solve_triangular(factor, c.mT, upper=False).mT
    return y, len(c), c.shape[1]


def _tail(statistic: float, freedom: float) -> float:
    return float(stats.chi2.sf(statistic, freedom))


def _normal_of_chi_square(statistic: float, freedom: float) -> float:
    """Wilson and Hilferty's cube root, which stays finite where the tail underflows."""
    if freedom <= 0:
        return nan
    spread = 2 / (9 * freedom)
    return float(((statistic / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5)
