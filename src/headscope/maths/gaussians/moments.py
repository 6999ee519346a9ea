r"""Moments of data that comes in pieces: sketches that merge to one answer.

A sketch keeps sums of deviations from the mean of what it has seen, never raw sums of squares: those cancel when the
mean is much larger than the spread. Two sketches merge by moving both to the common mean.
"""

from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.errors import NumericsError, UsageError
from headscope.maths.linear_algebra.symmetric import gram_matrix

# Samples that become float64 at a time, and the number of them whose mean is near the mean of all.
_ROWS, _NEAR = 2048, 64


@dataclass(frozen=True)
class Moments:
    r"""Count, mean and centred sums of powers of samples in d dimensions.

    Definition:
        With $c_k = x_k - \bar x$: scatter $S = \sum_k c_k c_k^\top$, cubic $\sum_k |c_k|^2 c_k$, quartic
        $\sum_k |c_k|^4$. The last two are what Ledoit–Wolf shrinkage needs besides S.
    Properties:
        - any split of the samples, merged in any order, gives the same  (tested: test_moments_of_any_split)
        - a distant mean costs no accuracy  (tested: test_moments_far_from_the_origin)
        - the empty sketch changes nothing  (tested: test_merging_nothing)
    Numerics:
        float64. Merging two sketches costs O(d²).
    Reference:
        Chan, Golub and LeVeque (1983), Algorithms for computing the sample variance, The American Statistician 37, 242.
    """

    count: int
    mean: Float[Tensor, "*batch d"]
    scatter: Float[Tensor, "*batch d d"]
    cubic: Float[Tensor, "*batch d"]
    quartic: Float[Tensor, "*batch"]

    @classmethod
    def empty(cls, d: int, batch: tuple[int, ...] = ()) -> "Moments":
        """The sketch of no samples."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros((*batch, *shape), dtype=torch.float64)

        return cls(0, zeros(d), zeros(d, d), zeros(d), zeros())

    @classmethod
    def of(cls, x: Float[Tensor, "*batch samples d"]) -> "Moments":
        """The sketch of samples, one per row."""
        starts = range(0, x.shape[-2], _ROWS)
        parts = [cls._of_block(x[..., start : start + _ROWS, :]) for start in starts]
        return reduce(cls.merge, parts, cls.empty(x.shape[-1], tuple(x.shape[:-2])))

    @classmethod
    def _of_block(cls, x: Float[Tensor, "*batch samples d"]) -> "Moments":
        # This runs on every row of every layer: one pass turns the rows to float64 about a point near their mean, one
        # symmetric product gives every sum, those of 1 and of the squared lengths too, which are two more columns.
        rows, d = x.shape[-2], x.shape[-1]
        near = x[..., :: -(-rows // _NEAR), :].to(torch.float64).mean(-2)
        c = torch.empty((*x.shape[:-1], d + 2), dtype=torch.float64)
        torch.sub(x, near.unsqueeze(-2), out=c[..., :d])
        c[..., d] = 1.0
        c[..., d + 1] = torch.linalg.vecdot(c[..., :d], c[..., :d])
        gram = gram_matrix(c)
        spread, quartic = gram[..., d, d + 1], gram[..., d + 1, d + 1]
        # A sample that is not finite makes this infinite or NaN too, and this is cheaper to check.
        if not bool(torch.isfinite(quartic).all()) and not bool(torch.isfinite(x).all()):
            raise NumericsError(f"samples of shape {tuple(x.shape)} hold NaN or Inf, so they have no moments")
        gap = gram[..., :d, d] / rows
        about = cls(rows, near, gram[..., :d, :d], gram[..., :d, d + 1], quartic)
        return about._recentred(gap, spread)

    def _recentred(self, gap: Float[Tensor, "*batch d"], spread: Float[Tensor, "*batch"]) -> "Moments":
        """Moments from sums about `mean` when the true mean is `mean` + gap.

        `spread` is the sum of squared lengths.
        """
        s, n = self.scatter, self.count
        length = gap.square().sum(-1)
        turned = (s @ gap.unsqueeze(-1)).squeeze(-1)
        scatter = s - n * gap.unsqueeze(-1) * gap.unsqueeze(-2)
        cubic = self.cubic - 2 * turned + gap * (2 * n * length - spread).unsqueeze(-1)
        along = (turned * gap).sum(-1) - (self.cubic * gap).sum(-1)
        quartic = self.quartic + 4 * along + 2 * length * spread - 3 * n * length.square()
        return Moments(n, self.mean + gap, scatter, cubic, quartic)

    @property
    def d(self) -> int:
        """Number of dimensions."""
        return self.mean.shape[-1]

    def merge(self, other: "Moments") -> "Moments":
        """The sketch of the samples of both sketches."""
        if self.mean.shape != other.mean.shape:
            raise UsageError(
                f"sketches of shapes {tuple(self.mean.shape)} and {tuple(other.mean.shape)} describe different things"
            )
        count = self.count + other.count
        if not other.count or not self.count:
            return self if self.count else other
        gap, share = other.mean - self.mean, other.count / count
        a, b = self._about(-gap * share), other._about(gap * (self.count / count))
        # The two shifts of the scatters add up to one: the gap between the means.
        scatter = self.scatter + other.scatter
        scatter += (gap * (self.count * share)).unsqueeze(-1) * gap.unsqueeze(-2)
        return Moments(count, self.mean + gap * share, scatter, a[0] + b[0], a[1] + b[1])

    def _about(self, shift: Float[Tensor, "*batch d"]) -> tuple[Tensor, Tensor]:
        """Cubic and quartic sums with `shift` added to every deviation.

        They are the sums about mean − shift.
        """
        s, n = self.scatter, self.count
        length = shift.square().sum(-1)
        spread = s.diagonal(dim1=-2, dim2=-1).sum(-1)
        turned = (s @ shift.unsqueeze(-1)).squeeze(-1)
        cubic = self.cubic + 2 * turned + shift * (spread + n * length).unsqueeze(-1)
        along = (self.cubic * shift).sum(-1) + (turned * shift).sum(-1)
        return cubic, self.quartic + 4 * along + 2 * length * spread + n * length.square()

    def covariance(self, ddof: int = 1) -> Float[Tensor, "*batch d d"]:
        r"""Scatter divided by count − ddof.

        1 gives the unbiased estimate, 0 the estimate of maximum likelihood.

        Properties:
            - equals torch.cov  (tested: test_covariance_equals_torch)
            - symmetric, and with n samples of rank at most n − 1  (tested: test_rank_of_few_samples)
        """
        if self.count - ddof < 1:
            raise NumericsError(
                f"a covariance needs at least {ddof + 1} samples, got {self.count}", hint="take more samples"
            )
        return (self.scatter + self.scatter.mT) / (2 * (self.count - ddof))
