r"""Cosines of vectors: exact moments over all pairs, and of random directions.

For unit rows $u_i$ the sum over all pairs of $u_i \cdot u_j$ follows from $|\sum_i u_i|^2$, and that of its square from
$|U^\top U|_F^2$: no pair is sampled.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

import torch
from jaxtyping import Bool, Float
from scipy import special
from torch import Tensor

from headscope.errors import NumericsError

# Rows turned to float64 at a time: a table of vectors is never copied whole.
ROWS = 4096


@dataclass(frozen=True)
class Directions:
    r"""Sums of directions from which the moments of all their cosines follow.

    They are the number of vectors, $\sum_i u_i$ and $U^\top U$ with $u_i = x_i / |x_i|$.

    Rows without length have no direction and are not counted.

    Properties:
        - the moments are those over all pairs  (tested: test_moments_are_those_of_all_pairs)
    """

    count: int
    total: Float[Tensor, " d"]
    gram: Float[Tensor, "d d"]

    @classmethod
    def of(cls, x: Float[Tensor, "rows d"], centre: Float[Tensor, " d"] | None = None) -> "Directions":
        """Sums of the rows from `centre` (default 0), in float64, block by block."""
        d = x.shape[1]
        count, total = 0, torch.zeros(d, dtype=torch.float64)
        gram = torch.zeros(d, d, dtype=torch.float64)
        for u in unit_blocks(x, centre):
            count += len(u)
            total += u.sum(0)
            gram += torch.from_numpy(u.numpy().T @ u.numpy())  # numpy knows that it is symmetric: half the work
        return cls(count, total, gram)

    @property
    def pairs(self) -> int:
        """Unordered pairs of different rows."""
        return self.count * (self.count - 1) // 2

    @property
    def mean(self) -> float:
        r"""Mean cosine of two different rows: $(|\sum_i u_i|^2 - n)\,/\,n(n-1)$."""
        self._check(2)
        return (float(self.total.square().sum()) - self.count) / (2 * self.pairs)

    @property
    def mean_square(self) -> float:
        r"""Mean squared cosine of two different rows: $(|U^\top U|_F^2 - n)\,/\,n(n-1)$."""
        self._check(2)
        return (float(self.gram.square().sum()) - self.count) / (2 * self.pairs)

    def with_others(self, other_directions: "Directions") -> tuple[float, float]:
        r"""Mean and mean square of the cosines between all rows of two tables.

        Definition:
            $\bar u \cdot \bar v$ and $\mathrm{Tr}(U^\top U\,V^\top V)\,/\,nm$.
        Properties:
            - those over all pairs  (tested: test_moments_are_those_of_all_pairs)
        """
        self._check(1)
        other_directions._check(1)
        pairs = self.count * other_directions.count
        return float(self.total @ other_directions.total) / pairs, float(
            (self.gram * other_directions.gram).sum()
        ) / pairs

    def _check(self, least: int) -> None:
        if self.count < least:
            raise NumericsError(f"a cosine needs {least} vectors that have a length, found {self.count}")


def blocks(x: Float[Tensor, "rows d"]) -> Iterator[Float[Tensor, "_ d"]]:
    """The rows, a block at a time."""
    for first in range(0, len(x), ROWS):
        yield x[first : first + ROWS]


def unit_blocks(
    x: Float[Tensor, "rows d"], centre: Float[Tensor, " d"] | None = None
) -> Iterator[Float[Tensor, "block d"]]:
    """Directions of the rows from `centre` (default 0), in float64 and in blocks.

    Rows without length are left out.
    """
    for stored in blocks(x):
        block = stored.to(torch.float64)
        block = block if centre is None else block - centre
        length = block.norm(dim=1, keepdim=True)
        has_length: Bool[Tensor, " rows"] = length[:, 0] > 0
        yield block[has_length] / length[has_length]


def null_deviations(d: int, pairs: int) -> tuple[float, float]:
    r"""Standard deviations of mean cosine and mean squared cosine over random pairs.

    Definition:
        $\sqrt{1/dN}$ and $\sqrt{2(d-1)/d^2(d+2)N}$: cosines of different pairs are uncorrelated, and so are their
        squares, because a random direction has the same distribution seen from any other.
    Properties:
        - those of drawn directions  (tested: test_null_deviations)
    """
    return 1 / sqrt(d * pairs), sqrt(2 * (d - 1) / (d * d * (d + 2) * pairs))


def cosine_density(t: Float[Tensor, "*n"], d: int) -> Float[Tensor, "*n"]:
    r"""Density of the cosine of two random directions.

    It is $(1-t^2)^{(d-3)/2}\,/\,B(\frac12, \frac{d-1}2)$.

    Properties:
        - integrates to 1, with variance 1/d  (tested: test_density_of_a_cosine)
    """
    if d < 2:
        raise NumericsError(f"the cosine of random directions has a density from 2 dimensions on, got {d}")
    log_norm = float(special.betaln(0.5, (d - 1) / 2))
    inside = (1 - t.to(torch.float64).square()).clamp_min(0.0)
    return torch.exp((d - 3) / 2 * inside.log() - log_norm)


def largest_cosine(d: int, count: int) -> float:
    r"""The median of the largest of `count` cosines of random directions with one.

    Definition:
        t with $P(\cos > t) = 1 - 2^{-1/\mathrm{count}}$; $(1 + \cos)/2$ has the Beta law of both parameters $(d-1)/2$.
    Properties:
        - half of the draws are above it  (tested: test_largest_of_many_cosines)
    """
    if d < 2 or count < 1:
        raise NumericsError(f"the largest of {count} cosines in {d} dimensions is not random")
    tail = -special.expm1(-special.log1p(1.0) / count)
    return 1 - 2 * float(special.betaincinv((d - 1) / 2, (d - 1) / 2, tail))
