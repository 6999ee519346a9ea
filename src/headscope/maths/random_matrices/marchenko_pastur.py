r"""Spectra of Gaussian matrices and of products of two: matrices without structure.

A learned matrix is compared with a random one of the same shape and size. Two laws are needed:

- `MarchenkoPastur` for one matrix with independent entries (W_Q, W_K, W_V, W_O of a layer);
- `GaussianProduct` for the product of two (W_QK, W_OV of a head). Its spectrum is not Marchenko–Pastur but
  the free multiplicative convolution of two of them.

**Normalisation.** Both describe the nonzero eigenvalues of $W W^\top$, that is the squared singular values,
of W itself: nothing is divided by a number of columns. `singular_density` is the law of the singular
values themselves. The laws are limits for large matrices; at the size of a head (smallest side 32) they are
within 2 % of the mean over Gaussian matrices (tested: test_laws_hold_at_the_size_of_a_head).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from math import exp, pi, sqrt

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headscope.errors import UsageError

# Tracy–Widom law for real matrices: mean, standard deviation, and the chance 1 − F₁(0) of being beyond the
# edge. Bornemann (2010), On the numerical evaluation of distributions in random matrix theory, table 10.
TRACY_WIDOM_MEAN = -1.2065336
TRACY_WIDOM_SD = 1.2679831
BEYOND_EDGE = 0.1681


class Law(ABC):
    """A limit law of squared singular values; the finite matrix has p of them."""

    variance: float

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the matrices, smallest first."""

    @property
    @abstractmethod
    def edges(self) -> tuple[float, float]:
        """Smallest and largest eigenvalue of the limit."""

    @property
    @abstractmethod
    def edge_curvature(self) -> float:
        """A in $f(x) = A \\sqrt{b - x} / \\pi$ just below the upper edge b."""

    @property
    @abstractmethod
    def entropy_deficit(self) -> float:
        r"""$\mathbb{E}[y \ln y]$, y = x/mean: ln p less the entropy of the energy."""

    @abstractmethod
    def density(self, x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Density at x; 0 outside the edges."""

    @abstractmethod
    def cdf(self, x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Share of the eigenvalues that are at most x."""

    def __post_init__(self) -> None:
        if min(self.sizes) < 1 or not self.variance > 0:
            raise UsageError(
                "a random matrix needs sizes of at least 1 and a positive variance; "
                f"got sizes {self.sizes} and variance {self.variance}"
            )

    @property
    def mean(self) -> float:
        """Mean eigenvalue: the variance of an entry times every size but the smallest."""
        return self.variance * float(np.prod(self.sizes[1:], dtype=float))

    def quantile(self, probability: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        r"""The value below which a share `probability` of the eigenvalues lies.

        Properties:
            - inverse of the distribution function  (tested: test_quantile_inverts_cdf)
        Numerics:
            Bisection, 60 halvings: absolute error $10^{-16}$ of the width of the support.
        """
        low, high = (torch.full_like(probability, edge, dtype=torch.float64) for edge in self.edges)
        for _ in range(60):
            midpoint = (low + high) / 2
            below = self.cdf(midpoint) < probability
            low, high = torch.where(below, midpoint, low), torch.where(below, high, midpoint)
        return (low + high) / 2

    def singular_density(self, s: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        r"""Density of the singular values: $2 s f(s^2)$.

        Properties:
            - integrates to 1  (tested: test_densities_integrate_to_one)
        """
        return 2 * s.to(torch.float64) * self.density(s.to(torch.float64).square())

    @property
    def largest(self) -> tuple[float, float]:
        r"""Mean and standard deviation of the largest eigenvalue of a finite matrix.

        Definition:
            $b + (p A)^{-2/3}\,T$: b the upper edge, A its curvature, T Tracy–Widom (real case).
        Properties:
            - Johnstone's scale for one matrix  (tested: test_largest_has_johnstones_scale)
            - agrees with Gaussian matrices  (tested: test_laws_hold_at_the_size_of_a_head)
        Reference:
            Johnstone (2001), On the distribution of the largest eigenvalue, Annals of Statistics 29, 295.
        """
        scale = (self.sizes[0] * self.edge_curvature) ** (-2 / 3)
        return self.edges[1] + scale * TRACY_WIDOM_MEAN, scale * TRACY_WIDOM_SD

    @property
    def stable_rank(self) -> float:
        """Sum of the squared singular values over the expected largest one."""
        return self.sizes[0] * self.mean / self.largest[0]

    @property
    def effective_rank(self) -> float:
        """Exponential of the entropy of energy of a spectrum that follows the law."""
        return self.sizes[0] * exp(-self.entropy_deficit)


@dataclass(frozen=True)
class MarchenkoPastur(Law):
    r"""Limit law of the nonzero eigenvalues of $W W^\top$ for independent entries.

    W is rows × columns.

    Definition:
        With p the smaller side, n the larger, v the variance of an entry (mean 0):
        $f(x) = \frac{\sqrt{(x - a)(b - x)}}{2\pi\,v\,p\,x}$ on $[a, b]$,
        $a, b = v(\sqrt{n} \mp \sqrt{p})^2$.
    Properties:
        - density integrates to 1  (tested: test_densities_integrate_to_one)
        - mean $v n$, second moment $v^2 n (n + p)$  (tested: test_moments_of_marchenko_pastur)
        - a Gaussian matrix follows it  (tested: test_gaussian_matrix_follows_marchenko_pastur)
        - 1024 × 4096, v = 0.0004: [0.4096, 3.6864], mean 1.6384  (tested: test_published_edges)
    Numerics:
        Closed forms; the distribution function is the exact antiderivative.
    Reference:
        Marchenko and Pastur (1967), Math. USSR Sbornik 1, 457. Wertich, section 2.5, states the square case:
        his density is that of $W W^\top / n$ (edge 4v); for W itself and v = 1/n the edge is 4, not 4/n. His
        eq. 6.12 (largest eigenvalue 4nv) is right.
    """

    rows: int
    columns: int
    variance: float = 1.0

    @property
    def sizes(self) -> tuple[int, ...]:
        """Smaller side, larger side."""
        return tuple(sorted((self.rows, self.columns)))

    @property
    def edges(self) -> tuple[float, float]:
        """Smallest and largest eigenvalue of the limit."""
        p, n = self.sizes
        return self.variance * (sqrt(n) - sqrt(p)) ** 2, self.variance * (sqrt(n) + sqrt(p)) ** 2

    @property
    def edge_curvature(self) -> float:
        """A in $f(x) = A \\sqrt{b - x} / \\pi$ just below the upper edge b."""
        low, high = self.edges
        return sqrt(high - low) / (2 * self.variance * self.sizes[0] * high)

    @property
    def entropy_deficit(self) -> float:
        r"""$\mathbb{E}[y \ln y]$, y = x/mean: half the aspect ratio, p/2n.

        Properties:
            - equals the integral over the density  (tested: test_entropy_deficits)
        Reference:
            Page (1993), Phys. Rev. Lett. 71, 1291: the mean entropy of a subsystem is $\ln p - p/2n$.
        """
        p, n = self.sizes
        return p / n / 2

    def density(self, x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Density at x; 0 outside the edges."""
        low, high = self.edges
        x = x.to(torch.float64)
        root = ((x - low) * (high - x)).clamp_min(0.0).sqrt()
        inside = root > 0
        return root / (2 * pi * self.variance * self.sizes[0] * torch.where(inside, x, 1.0))

    def cdf(self, x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Share of the eigenvalues that are at most x."""
        low, high = self.edges
        x = x.to(torch.float64).clamp(low, high)
        root = ((x - low) * (high - x)).clamp_min(0.0).sqrt()
        first = _asin((2 * x - low - high) / (high - low))
        # A square matrix has low = 0: the term vanishes there, and at x = 0 its argument is 0/0.
        second = _asin(((low + high) * x - 2 * low * high) / (x * (high - low))) if low > 0 else 0.0
        total = root + (low + high) / 2 * first - sqrt(low * high) * second
        return (total / (2 * pi * self.variance * self.sizes[0])).clamp(0.0, 1.0)


@dataclass(frozen=True)
class GaussianProduct(Law):
    r"""Limit law of the nonzero squared singular values of $a\,b^\top$.

    The factors are a: rows × inner and b: columns × inner.

    Definition:
        The entries of a and b are independent with mean 0; v is the product of their two variances. With p
        the smallest of the three sizes, $n_1, n_2$ the others, $c_i = p / n_i$ and x in units of the mean
        $v\,n_1 n_2$, the transform $z(x) = x\,G(x) - 1$ (G the Stieltjes transform) solves the cubic
        $x\,z = (1 + z)(1 + c_1 z)(1 + c_2 z)$;
        $f(x) = |\mathrm{Im}\,z| / (\pi x)$, and the edges are the x where two of its roots meet.
    Properties:
        - density integrates to 1  (tested: test_densities_integrate_to_one)
        - mean $v\,n_1 n_2$, second moment mean²·(1 + c₁ + c₂)  (tested: test_moments_of_gaussian_product)
        - upper edge 27/4 of the mean for square matrices  (tested: test_edges_of_a_square_product)
        - Marchenko–Pastur where one size is infinite  (tested: test_product_becomes_marchenko_pastur)
        - Gaussian products follow it  (tested: test_gaussian_product_follows_its_law)
        - and not Marchenko–Pastur  (tested: test_gaussian_product_is_not_marchenko_pastur)
    Numerics:
        Roots as eigenvalues of 3 × 3 companion matrices, float64. The distribution function is closed:
        $1 - |\mathrm{Im}\,\Phi(z)|/\pi$ with $\Phi(z) = 2z - \ln z + \sum_i (1 - 1/c_i) \ln(1 + c_i z)$,
        because $d\Phi = G\,dx$.
    Reference:
        The S-transform of a Wishart factor is 1/(1 + c z), and those of free factors multiply: Voiculescu
        (1987), J. Operator Theory 18, 223; Burda, Jarosz, Livan, Nowak and Swiech (2010), Phys. Rev. E 82,
        061114. That the order of the three sizes does not matter: Ipsen and Kieburg (2014), Phys. Rev. E 89,
        032106.
    """

    rows: int
    inner: int
    columns: int
    variance: float = 1.0

    @property
    def sizes(self) -> tuple[int, ...]:
        """The three sizes, smallest first."""
        return tuple(sorted((self.rows, self.inner, self.columns)))

    @cached_property
    def edges(self) -> tuple[float, float]:
        """Smallest and largest eigenvalue of the limit."""
        if self._ratios[0] == 1.0:
            return 0.0, self._x(self._turning_points[-1]) * self.mean
        # x < lower edge means z < −1, so the lower edge is the turning point just below −1.
        below = self._turning_points[self._turning_points < -1.0]
        return self._x(below[-1]) * self.mean, self._x(self._turning_points[-1]) * self.mean

    @property
    def edge_curvature(self) -> float:
        """A in $f(x) = A \\sqrt{b - x} / \\pi$ just below the upper edge b."""
        c_1, c_2 = self._ratios
        z = self._turning_points[-1]
        second = 2 * c_1 * c_2 + 2 / z**3  # of x(z); x − b = second·(z − z_b)²/2 near the edge
        return sqrt(2 / second / self.mean) / self.edges[1]

    @property
    def entropy_deficit(self) -> float:
        r"""$\mathbb{E}[y \ln y] = \frac{c_1 + c_2}{2} - \frac{c_1 c_2}{6}$, y = x/mean.

        By Lagrange inversion $\mathbb{E}[y^k] = \frac{1}{k}\oint (x(z))^k \frac{dz}{2\pi i}$ with
        $x(z) = (1+z)(1+c_1z)(1+c_2z)/z$; the derivative at k = 1 is a residue.

        Properties:
            - equals the integral over the density; 5/6 for square matrices  (tested: test_entropy_deficits)
        """
        c_1, c_2 = self._ratios
        return (c_1 + c_2) / 2 - c_1 * c_2 / 6

    def density(self, x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Density at x; 0 outside the edges."""
        x, inside = self._inside(x)
        return torch.where(inside, self._root(x).imag / (pi * x), 0.0)

    def cdf(self, x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Share of the eigenvalues that are at most x."""
        beyond = (x >= self.edges[1]).to(torch.float64)
        x, inside = self._inside(x)
        z = self._root(x)
        potential = 2 * z - z.log()
        for c in self._ratios:
            potential = potential + (1 - 1 / c) * (1 + c * z).log()
        return torch.where(inside, (1 - potential.imag.abs() / pi).clamp(0.0, 1.0), beyond)

    @property
    def _ratios(self) -> tuple[float, float]:
        p, n_1, n_2 = self.sizes
        return p / n_1, p / n_2

    @cached_property
    def _turning_points(self) -> np.ndarray:
        """The z with dx/dz = 0, ascending; all three are real."""
        c_1, c_2 = self._ratios
        return np.sort(np.roots([2 * c_1 * c_2, c_1 * c_2 + c_1 + c_2, 0.0, -1.0]).real)

    def _x(self, z: float) -> float:
        c_1, c_2 = self._ratios
        return float((1 + z) * (1 + c_1 * z) * (1 + c_2 * z) / z)

    def _inside(self, x: Float[Tensor, "*n"]) -> tuple[Tensor, Tensor]:
        """x in float64 with a harmless value outside the edges, and where it is inside."""
        low, high = self.edges
        x = x.to(torch.float64)
        inside = (x > low) & (x < high)
        return torch.where(inside, x, (low + high) / 2), inside

    def _root(self, x: Float[Tensor, "*n"]) -> Tensor:
        """The root of the cubic in the upper half-plane, for each x between the edges."""
        c_1, c_2 = self._ratios
        companion = torch.zeros(*x.shape, 3, 3, dtype=torch.float64)
        companion[..., 1, 0] = companion[..., 2, 1] = 1.0
        companion[..., 0, 2] = -1 / (c_1 * c_2)
        companion[..., 1, 2] = (x / self.mean - 1 - c_1 - c_2) / (c_1 * c_2)
        companion[..., 2, 2] = -(c_1 * c_2 + c_1 + c_2) / (c_1 * c_2)
        roots: Tensor = torch.linalg.eigvals(companion)
        return roots.gather(-1, roots.imag.argmax(-1, keepdim=True))[..., 0]


def _asin(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Arc sine plus π/2 of a value that rounding may move out of [−1, 1]."""
    return torch.asin(x.clamp(-1, 1)) + pi / 2
