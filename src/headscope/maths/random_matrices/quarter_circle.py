r"""The quarter-circle law of the singular values of a large random square matrix.

It is Marchenko–Pastur's law for a square matrix, read for the singular values instead of their squares: half of
Wigner's semicircle. A large symmetric matrix with independent entries has the same singular values, because they are
the absolute values of its eigenvalues.
"""

from dataclasses import dataclass
from math import exp, lgamma, log, pi

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.errors import UsageError


@dataclass(frozen=True)
class QuarterCircle:
    r"""The law on [0, radius].

    An n × n matrix with entries of variance v has the radius $2\sqrt{nv}$.

    Definition:
        $f(s) = \frac{4}{\pi R^2}\sqrt{R^2 - s^2}$.
    Properties:
        - integrates to 1  (tested: test_density_cdf_and_moments_agree)
        - the singular density of the square Marchenko–Pastur law  (tested: test_it_is_the_square_marchenko_pastur_law)
        - mean $\frac{8}{3\pi}\sqrt{nv}$, not $\sqrt{nv}$; mean square $nv$  (tested: test_mean_of_the_quarter_circle)
        - singular values of square and symmetric Gaussian matrices  (tested: test_matrices_follow_the_quarter_circle)
    Reference:
        Wigner (1958), Annals of Mathematics 67, 325; Marchenko and Pastur (1967), Math. USSR Sbornik 1, 457.
    """

    radius: float

    def __post_init__(self) -> None:
        if not self.radius > 0:
            raise UsageError(f"a quarter circle needs a positive radius, got {self.radius}")

    @classmethod
    def of_square_matrix(cls, n: int, variance: float) -> "QuarterCircle":
        """The law for an n × n matrix with independent entries of this variance."""
        return cls(2 * (n * variance) ** 0.5)

    def density(self, s: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Density at s; 0 outside [0, radius]."""
        t = s.to(torch.float64) / self.radius
        inside = (t >= 0) & (t <= 1)
        return torch.where(inside, 4 / (pi * self.radius) * (1 - t.square()).clamp_min(0.0).sqrt(), 0.0)

    def cdf(self, s: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Share of the singular values that are at most s."""
        t = (s.to(torch.float64) / self.radius).clamp(0.0, 1.0)
        return 2 / pi * (t * (1 - t.square()).sqrt() + t.asin())

    def quantile(self, probability: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """The singular value below which a share `probability` lies, by bisection."""
        low = torch.zeros_like(probability, dtype=torch.float64)
        high = torch.full_like(low, self.radius)
        for _ in range(60):
            midpoint = (low + high) / 2
            below = self.cdf(midpoint) < probability
            low, high = torch.where(below, midpoint, low), torch.where(below, high, midpoint)
        return (low + high) / 2

    def moment(self, power: float) -> float:
        r"""The moment $\mathbb{E}[s^p]$ for any real p > −1.

        It is $R^p\,\frac{\Gamma((p+1)/2)}{\sqrt{\pi}\,\Gamma(p/2 + 2)}\cdot 2$.

        Properties:
            - equals the integral over the density; even powers give Catalan numbers
              (tested: test_density_cdf_and_moments_agree)
        """
        if not power > -1:
            raise UsageError(f"the quarter circle has moments of powers above −1, got {power}")
        # 4/π ∫ t^p √(1−t²) dt over [0, 1] is 2/π · B((p+1)/2, 3/2), and Γ(3/2) = √π/2.
        log_beta = lgamma((power + 1) / 2) + lgamma(1.5) - lgamma(power / 2 + 2)
        return exp(power * log(self.radius) + log_beta) * 2 / pi

    @property
    def mean(self) -> float:
        """$4R/(3\\pi)$."""
        return self.moment(1.0)
