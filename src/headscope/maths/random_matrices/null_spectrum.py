"""A spectrum compared with a random matrix of the same shape and Frobenius norm."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import log, pi, prod, sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.maths.linear_algebra.spectrum import effective_rank, stable_rank
from headscope.maths.random_matrices.marchenko_pastur import (
    BEYOND_EDGE,
    TRACY_WIDOM_MEAN,
    GaussianProduct,
    Law,
    MarchenkoPastur,
)
from headscope.maths.random_matrices.tracy_widom import centre_and_scale, survival


@lru_cache(maxsize=256)
def unit_law(sizes: tuple[int, ...]) -> Law:
    """The law of these sizes with mean square 1.

    A matrix has two sizes, a product three (the second is the inner one).
    """
    if len(sizes) == 2:
        rows, columns = sizes
        return MarchenkoPastur(rows, columns, 1 / max(sizes))
    rows, inner, columns = sizes
    _, n_1, n_2 = sorted(sizes)
    return GaussianProduct(rows, inner, columns, 1 / (n_1 * n_2))


@lru_cache(maxsize=256)
def unit_median(sizes: tuple[int, ...]) -> float:
    """The median squared singular value of the law of that shape with mean square 1."""
    return float(unit_law(sizes).quantile(torch.tensor(0.5, dtype=torch.float64)))


@lru_cache(maxsize=256)
def unit_largest(sizes: tuple[int, ...]) -> tuple[float, float]:
    """Centre m and scale w of the largest squared singular value of mean square 1.

    It is m + w·T, T Tracy–Widom.
    """
    if len(sizes) == 2:
        return centre_and_scale(*sizes, variance=1 / max(sizes))
    law = unit_law(sizes)
    return law.edges[1], (law.sizes[0] * law.edge_curvature) ** (-2 / 3)


def random_distance(p: int) -> float:
    r"""Mean distance $\sup|F_p - F|$ of p random squared singular values to their law.

    Definition:
        $\frac{\sqrt2}{\pi}\,\frac{\ln p + 1}{p}$.
    Properties:
        - that of Gaussian matrices and products within a tenth  (tested: test_bulk_of_a_gaussian_matrix)
    Numerics:
        The factor of the logarithm is the theorem's (β = 1); the 1 was found by sampling shapes from 5 to 576.
    Reference:
        Claeys, Fahs, Lambert and Webb (2021), Duke Math. J. 170, 2085.
    """
    return sqrt(2) / pi * (log(p) + 1) / p


@dataclass(frozen=True)
class Bulk:
    """The bulk of a spectrum: the values without its spikes.

    `mean_square` is that of the random matrix whose median is the bulk's, `edges` are its smallest and largest singular
    values, `spikes` counts what lies above them, and `distance` is the largest gap between the distribution functions
    of the bulk and of that law (None where there is no bulk).
    """

    mean_square: float
    edges: tuple[float, float]
    spikes: int
    distance: float | None


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

    @cached_property
    def bulk(self) -> Bulk:
        r"""The law fitted to the bulk by the median, which a few spikes hardly move.

        Definition:
            $s = \mathrm{median}(\sigma_i^2)/m$, m the median of the law with mean 1; the law is that of mean s. Its
            distance is $\sup_x |F_n(x) - F(x)|$ over the values up to its upper edge.
        Properties:
            - a Gaussian matrix has the variance of its entries, and the distance of the null
              (tested: test_bulk_of_a_gaussian_matrix)
            - spikes do not move it  (tested: test_spikes_leave_the_bulk_alone)
            - a spectrum of another kind is far from it  (tested: test_a_bulk_of_another_kind_is_far)
        Numerics:
            No iteration that leaves out what is above the edge and fits again: on spectra that follow no such law it
            eats up the bulk.
        Reference:
            Gavish and Donoho (2014), IEEE Trans. Inf. Theory 60, 5040, section III.E (the median).
        """
        squares = self.sigma.square()
        scale = float(squares.quantile(0.5)) / unit_median(self.sizes)
        low, high = (sqrt(edge * scale) for edge in self.law.edges)
        spikes = int((self.sigma > high).sum())
        return Bulk(scale, (low, high), spikes, self._distance(squares[spikes:].flip(0), scale))

    def _distance(self, bulk: Float[Tensor, " kept"], scale: float) -> float | None:
        if not scale > 0 or not len(bulk):
            return None
        law = self.law.cdf(bulk / scale)
        steps = torch.arange(len(bulk) + 1, dtype=torch.float64) / len(bulk)
        return float(torch.maximum((law - steps[:-1]).abs().max(), (law - steps[1:]).abs().max()))

    @cached_property
    def tracy_widom(self) -> tuple[float, float] | None:
        r"""The largest square as a Tracy–Widom variable, and the chance to exceed it.

        Definition:
            $(\sigma_1^2 - m)/w$ and $1 - F_1$ of it, for the null; None for the zero matrix.
        Properties:
            - p-values of Gaussian matrices and products are uniform  (tested: test_p_values_of_comparisons)
        """
        if not self.mean_square > 0:
            return None
        centre, scale = unit_largest(self.sizes)
        place = (float(self.sigma[0]) ** 2 / self.mean_square - centre) / scale
        return place, float(survival(torch.tensor(place, dtype=torch.float64)))

    @property
    def effective_rank(self) -> float:
        """The measured effective rank."""
        return float(effective_rank(self.sigma))

    @cached_property
    def quantities(self) -> dict[str, tuple[float | None, float | None]]:
        """Each number with its value under the null.

        The null is None where it is scaled to the number; a number may be missing too.
        """
        squares = self.sigma.square()
        total = float(squares.sum())
        low, high = self.edges
        above = self.sigma > high
        energy = float(squares[above].sum()) / total if total > 0 else 0.0
        spiked = float(squares[: self.bulk.spikes].sum()) / total if total > 0 else 0.0
        place, chance = self.tracy_widom or (None, None)
        per_entry = self.mean_square / (prod(self.sizes) / min(self.sizes))
        beyond = BEYOND_EDGE * self.law.edges[1] / len(self.sigma)
        return {
            "mean_square": (self.mean_square, None),
            "sum_squares": (total, None),
            "largest": (float(self.sigma[0]), high),
            "smallest": (float(self.sigma[-1]), low),
            "stable_rank": (float(stable_rank(self.sigma)), self.law.stable_rank),
            "effective_rank": (self.effective_rank, self.law.effective_rank),
            "above_edge": (float(above.sum()), BEYOND_EDGE),
            "energy_above_edge": (energy, beyond),
            "largest_tracy_widom": (place, TRACY_WIDOM_MEAN),
            "largest_p_value": (chance, 0.5),
            "bulk_variance": (per_entry * self.bulk.mean_square / (self.mean_square or 1.0), per_entry),
            "bulk_distance": (self.bulk.distance, random_distance(len(self.sigma))),
            "spikes": (float(self.bulk.spikes), BEYOND_EDGE),
            "energy_in_spikes": (spiked, beyond),
        }

    def initial(self, sd: float) -> dict[str, float]:
        """The quantities that depend on the scale, for Gaussian entries of deviation sd.

        Both factors of a product have this deviation.
        """
        variance = sd ** (2 * (len(self.sizes) - 1))
        mean = variance * prod(self.sizes) / min(self.sizes)
        low, high = self.law.edges
        return {
            "mean_square": mean,
            "sum_squares": mean * min(self.sizes),
            "largest": sqrt(high * mean),
            "smallest": sqrt(low * mean),
            "bulk_variance": variance,
        }
