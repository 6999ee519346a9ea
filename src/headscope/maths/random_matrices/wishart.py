r"""Exact moments of $\sum_i\sigma_i^{2k}$ of a Gaussian matrix of finite size.

With the laws of `random_matrix` one knows a large matrix; these formulas have no error at any size, and so tell how
good the limit is.
"""

from math import exp as exponential
from math import lgamma, sqrt

from headscope.errors import UsageError


def trace_moment(rows: int, columns: int, power: int, variance: float = 1.0) -> float:
    r"""$\mathbb{E}\sum_i \sigma_i^{2k}$, exact, k = 1, 2, 3.

    Definition:
        With r rows, c columns, v the variance of an entry:
        $v\,rc$; $v^2 rc(r + c + 1)$; $v^3 rc(r^2 + c^2 + 3rc + 3r + 3c + 4)$.
    Properties:
        - that of samples  (tested: test_trace_moments_of_samples)
        - r × 1: the moments of a chi-squared variable  (tested: test_trace_moments_of_a_column)
        - rank times the moment of the Marchenko–Pastur law for large matrices
          (tested: test_trace_moments_approach_their_limit)
    Reference:
        Muirhead (1982), Aspects of Multivariate Statistical Theory, section 3.2; Letac and Massam (2004), Scand. J.
        Statist. 31, 295.
    """
    _check(rows, columns, variance)
    r, c = rows, columns
    if power == 1:
        return variance * r * c
    if power == 2:
        return variance**2 * r * c * (r + c + 1)
    if power == 3:
        return variance**3 * r * c * (r**2 + c**2 + 3 * r * c + 3 * r + 3 * c + 4)
    raise UsageError(f"the exact moments exist for the powers 1, 2 and 3, got {power}")


def energy_variance(rows: int, columns: int, variance: float = 1.0) -> float:
    r"""The variance of $\sum_i\sigma_i^2 = \|W\|_F^2$: 2·rows·columns·v².

    Properties:
        - that of samples  (tested: test_trace_moments_of_samples)
    Reference:
        $\|W\|_F^2/v$ is chi-squared with rows·columns degrees of freedom; Wertich, eq. 6.13.
    """
    _check(rows, columns, variance)
    return 2 * rows * columns * variance**2


def mean_length(n: int, variance: float = 1.0) -> float:
    r"""Mean length of a unit vector after a random matrix with n rows (a chi variable).

    Definition:
        $\sqrt{2v}\,\Gamma(\frac{n+1}{2})/\Gamma(\frac n2) = \sqrt{nv}\,(1 - \frac{1}{4n} + O(n^{-2}))$; the mean
        square is $nv$ exactly.
    Properties:
        - that of samples, and its expansion  (tested: test_mean_length)
    """
    _check(n, 1, variance)
    return sqrt(2 * variance) * exponential(lgamma((n + 1) / 2) - lgamma(n / 2))


def _check(rows: int, columns: int, variance: float) -> None:
    if rows < 1 or columns < 1 or not variance > 0:
        raise UsageError(f"no random matrix is {rows} × {columns} with variance {variance}")
