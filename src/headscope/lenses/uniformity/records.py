"""What is kept of each window: a few numbers about its tokens, exact to merge and small to keep."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan, sqrt

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.core import Site
from headscope.maths.linear_algebra.symmetric import gram_matrix, symmetric_eigenvalues

# Tokens of a window whose directions are taken for the ranks, at equal steps: a spectrum of all of them costs too much.
RANK_TOKENS = 128

STREAM = (
    "mean_cosine",
    "residual_share",
    "composite_share",
    "participation_ratio",
    "effective_rank",
    "differences",
    "length",
    "tokens",
    "dimensions",
)
AVERAGED = ("differences", "common")
READ = ("length",)

Key = tuple[str, Site]  # what was captured, and where


@dataclass(frozen=True)
class Rows:
    """One row of numbers per window, in the order of the text, as far as the first `most` tokens go.

    `lengths` counts the tokens of each window's text: the window in which token number `most` lies is the last one.
    `rounding` is that of the dtype which the model computes in.
    """

    most: int
    lengths: Int[Tensor, "windows"]
    values: Float[Tensor, "windows fields"]
    rounding: float

    @property
    def full(self) -> bool:
        """Whether no further window would be kept."""
        return int(self.lengths.sum()) >= self.most

    def merge(self, other: "Rows") -> "Rows":
        """Of both texts, this one's first."""
        lengths = torch.cat((self.lengths, other.lengths))
        stays = lengths.cumsum(0) - lengths < self.most
        values = torch.cat((self.values, other.values))
        return Rows(self.most, lengths[stays], values[stays], max(self.rounding, other.rounding))

    def column(self, names: tuple[str, ...], name: str) -> Float[Tensor, "windows"]:
        """One number of each window."""
        return self.values[:, names.index(name)]


def stream_row(x: Float[Tensor, "n d"]) -> list[float]:
    """About the tokens of one window; not a number where there are too few, or none that could be compared.

    The formulas are those of `maths.attention.token_collapse` and `maths.linear_algebra.spectrum`; here all numbers
    share their sums.
    """
    y = x.to(torch.float64)
    n, d = y.shape
    lengths = y.norm(dim=-1, keepdim=True)
    if n < 2 or not bool(torch.isfinite(lengths).all()) or bool((lengths == 0).any()):
        return [nan] * 7 + [float(n), float(d)]
    units = y / lengths
    mean = y.mean(0)
    deviations = y - mean
    rank_tokens = min(n, RANK_TOKENS)
    directions = units[torch.arange(rank_tokens) * n // rank_tokens]
    p = symmetric_eigenvalues(gram_matrix(directions.mT if rank_tokens <= d else directions)).clamp_min(0.0)
    p = p / p.sum()
    total, left, common = (float(part.norm()) for part in (y, deviations, mean))
    sizes = [float((part.sum(0).amax() * part.sum(1).amax()).sqrt()) for part in (deviations.abs(), y.abs())]
    return [
        (float(units.sum(0).square().sum()) - n) / (n * (n - 1)),
        left / total,
        sizes[0] / sizes[1],
        1 / float(p.square().sum()),
        float(torch.special.entr(p).sum().exp()),
        left / (sqrt(n) * common) if common > 0 else nan,
        total / sqrt(n),
        float(n),
        float(d),
    ]


def averaged_row(z: Float[Tensor, "heads n d"], repeats: int) -> list[float]:
    """Squared lengths of what distinguishes the tokens and of what they share, all heads together.

    `repeats` says how many heads read each of these, where they are values.
    """
    y = z.to(torch.float64)
    if y.shape[1] < 2 or not bool(torch.isfinite(y).all()):
        return [nan, nan]
    mean = y.mean(1, keepdim=True)
    return [repeats * float((y - mean).square().sum()), repeats * y.shape[1] * float(mean.square().sum())]


def read_row(x: Float[Tensor, "n d"]) -> list[float]:
    """The length of what the attention reads, root mean square."""
    return [float(x.to(torch.float64).square().sum(-1).mean().sqrt()) if len(x) > 1 else nan]


def rounding_bound(rounding: float, dimensions: float) -> float:
    r"""The share of a vector's length below which differences between tokens can be rounding.

    Every coordinate of a stream comes out of sums of d products. Rounded with a relative error of $\epsilon$ each,
    these are off by about $\epsilon \sqrt{d}$ of their size, each token in its own way: errors have either sign (Higham
    and Mary (2019), SIAM J. Sci. Comput. 41, A2815).
    """
    return rounding * sqrt(dimensions)


def merged(a: Mapping[Key, Rows], b: Mapping[Key, Rows]) -> dict[Key, Rows]:
    """What both have seen, a's windows first."""
    return {**a, **{key: a[key].merge(rows) if key in a else rows for key, rows in b.items()}}
