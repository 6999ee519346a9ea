"""A measured spectrum beside that of a random matrix of the same shape and the same Frobenius norm."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import sqrt

from jaxtyping import Float
from torch import Tensor

from headscope.maths.random_matrix import BEYOND_EDGE, GaussianProduct, Law, MarchenkoPastur
from headscope.maths.spectrum import effective_rank, stable_rank


@lru_cache(maxsize=256)
def unit_law(sizes: tuple[int, ...]) -> Law:
    """The law of that shape with mean square 1: two sizes for a matrix, three for a product (inner 2nd)."""
    if len(sizes) == 2:
        rows, columns = sizes
        return MarchenkoPastur(rows, columns, 1 / max(sizes))
    rows, inner, columns = sizes
    _, n_1, n_2 = sorted(sizes)
    return GaussianProduct(rows, inner, columns, 1 / (n_1 * n_2))


@dataclass(frozen=True)
class Comparison:
    r"""Singular values, largest first, and the random matrix to compare them with.

    Definition:
        The null has independent Gaussian entries (for a product: both factors have) with the one variance
        that gives it the same $\sum_i \sigma_i^2$ in the mean.
    Properties:
        - numbers of a Gaussian matrix are those of its null  (tested: test_gaussian_is_its_own_null)
        - a planted direction is counted as above the edge  (tested: test_planted_direction_is_above_the_edge)
    """

    sizes: tuple[int, ...]
    sigma: Float[Tensor, " rank"]

    @property
    def law(self) -> Law:
        """The null, scaled to mean square 1."""
        return unit_law(self.sizes)

    @cached_property
    def mean_square(self) -> float:
        """Mean squared singular value: the unit in which `law` is to be read."""
        return float(self.sigma.square().mean())

    @property
    def edges(self) -> tuple[float, float]:
        """Smallest and largest singular value of the null."""
        low, high = self.law.edges
        return sqrt(low * self.mean_square), sqrt(high * self.mean_square)

    @property
    def effective_rank(self) -> float:
        """Effective rank as measured."""
        return float(effective_rank(self.sigma))

    @cached_property
    def quantities(self) -> dict[str, tuple[float, float | None]]:
        """Each number with its value under the null (None where the null is scaled to it)."""
        squares = self.sigma.square()
        total = float(squares.sum())
        low, high = self.edges
        above = self.sigma > high
        energy = float(squares[above].sum()) / total if total > 0 else 0.0
        return {
            "mean_square": (self.mean_square, None),
            "sum_squares": (total, None),
            "largest": (float(self.sigma[0]), high),
            "smallest": (float(self.sigma[-1]), low),
            "stable_rank": (float(stable_rank(self.sigma)), self.law.stable_rank),
            "effective_rank": (self.effective_rank, self.law.effective_rank),
            "above_edge": (float(above.sum()), BEYOND_EDGE),
            "energy_above_edge": (energy, BEYOND_EDGE * self.law.edges[1] / len(self.sigma)),
        }
