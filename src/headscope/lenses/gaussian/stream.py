"""One residual stream: its moments, its principal axes, and the rows that were kept of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import nan, sqrt

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.core import Site
from headscope.lenses.shared.row_sample import Sample
from headscope.maths.gaussians.gaussian import eigen
from headscope.maths.gaussians.moments import Moments
from headscope.maths.resampling.jackknife import jackknife, student_quantile

# The rule of the lens: samples for each dimension in which something is estimated.
PER_DIMENSION = 10
BLOCK = 512  # rows that are computed at a time


@dataclass(frozen=True)
class First:
    """Count, mean and sum of squared deviations of the tokens that are left out."""

    count: int
    mean: Float[Tensor, "d"]
    spread: float

    @classmethod
    def of(cls, x: Float[Tensor, "rows d"]) -> "First":
        """Of rows."""
        x = x.to(torch.float64)
        mean = x.mean(0) if len(x) else torch.zeros(x.shape[1], dtype=torch.float64)
        return cls(len(x), mean, float((x - mean).square().sum()))

    def merge(self, other: "First") -> "First":
        """Of the rows of both."""
        if not self.count or not other.count:
            return self if self.count else other
        gap, count = other.mean - self.mean, self.count + other.count
        between = float(gap.square().sum()) * self.count * other.count / count
        return First(count, self.mean + gap * (other.count / count), self.spread + other.spread + between)


@dataclass(frozen=True)
class Kept:
    """What a fold keeps of one stream: moments of all rows, and a sample of rows and of the tokens left out."""

    moments: Moments
    first: First
    sample: Sample
    left: Sample

    def merge(self, other: "Kept") -> "Kept":
        """The summary of both texts, this one's windows first."""
        return Kept(
            self.moments.merge(other.moments),
            self.first.merge(other.first),
            self.sample.merge(other.sample),
            self.left.merge(other.left),
        )


@dataclass(frozen=True)
class Layer:
    """One stream: its moments, its principal axes, and the sampled rows, window after window.

    `parts` are the rows of each window. `left` are the tokens that are left out, with their windows in `left_window`;
    `lengths` says how many rows each sampled window has, kept or not.
    """

    site: Site
    moments: Moments
    first: First
    parts: tuple[Float[Tensor, "_ d"], ...]
    window: Int[Tensor, "rows"]
    position: Int[Tensor, "rows"]
    late: Int[Tensor, "rows"]
    left: Float[Tensor, "left d"]
    left_window: Int[Tensor, "left"]
    lengths: Float[Tensor, "windows"]
    windows_in_text: int
    components: int

    @classmethod
    def of(cls, summary: Kept, site: Site, components: int) -> "Layer":
        """From the summary that the fold keeps."""
        streams = [window.streams[site] for window in summary.sample.windows]
        left = [window.streams[site] for window in summary.left.windows]
        skip = summary.sample.plan.skip
        return cls(
            site,
            summary.moments,
            summary.first,
            tuple(stream.rows for stream in streams),
            torch.cat([torch.full_like(stream.positions, index) for index, stream in enumerate(streams)]),
            torch.cat([stream.positions for stream in streams]),
            torch.cat([(2 * stream.positions >= stream.length).to(torch.int64) for stream in streams]),
            torch.cat([stream.rows for stream in left]),
            torch.cat([torch.full_like(stream.positions, index) for index, stream in enumerate(left)]),
            torch.tensor([float(stream.length - skip) for stream in streams], dtype=torch.float64),
            summary.sample.seen,
            components,
        )

    @property
    def n_windows(self) -> int:
        """Windows in the sample."""
        return len(self.lengths)

    @cached_property
    def spectrum(self) -> tuple[Float[Tensor, "d"], Float[Tensor, "d d"]]:
        """Eigenvalues of the unbiased covariance, largest first, and the principal axes in columns.

        An eigenvector has no sign of its own, and rounding would choose one. Here its largest entry is positive, so
        that the skewness along it keeps its sign however the text was split.
        """
        values, vectors = eigen(self.moments.covariance())
        largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
        return values.flip(0), (vectors * largest.sign()).flip(1)

    @cached_property
    def rank(self) -> int:
        """Directions with any variance."""
        return int((self.spectrum[0] > 0).sum())

    @cached_property
    def share_drawn(self) -> float:
        """The error of a statistic over all windows, as a part of its error over the sampled windows alone.

        Only statistics whose value rests on every row (the moments) are this much better known. What is estimated from
        the sampled rows has the error of the sample.
        """
        return sqrt(self.n_windows / max(self.windows_in_text, self.n_windows))

    def scores(self, k: int) -> Float[Tensor, "rows k"]:
        """The first k principal components of the sampled rows; the usual number of them is projected once."""
        return self._most_scores[:, :k] if k <= self.components else self.projected(self.parts, k)

    @cached_property
    def _most_scores(self) -> Float[Tensor, "rows k"]:
        return self.projected(self.parts, self.components)

    def projected(self, parts: Sequence[Float[Tensor, "_ d"]], k: int) -> Float[Tensor, "rows k"]:
        """Any rows, window by window, on this layer's axes, from this layer's mean."""
        axes = self.spectrum[1][:, :k]
        # Block by block: all rows in float64 would not stay in the cache.
        scores = [block.to(torch.float64) @ axes for part in parts for block in torch.split(part, BLOCK)]
        return torch.cat(scores) - self.moments.mean @ axes

    def squared_distances(self, point: Float[Tensor, "d"]) -> Float[Tensor, "rows"]:
        """How far each sampled row lies from a point, squared."""
        return torch.cat([(part.to(torch.float64) - point).square().sum(1) for part in self.parts])

    def window_sums(self, x: Float[Tensor, "rows"]) -> Float[Tensor, "windows"]:
        """Sums over all rows of each window, estimated from the sampled rows."""
        zeros = torch.zeros(self.n_windows, dtype=torch.float64)
        sampled_counts = zeros.index_add(0, self.window, torch.ones(len(x), dtype=torch.float64))
        return zeros.index_add(0, self.window, x.to(torch.float64)) * self.lengths / sampled_counts

    def half_width(self, influence: Float[Tensor, "rows"]) -> float:
        """Half of the 95 % interval of a statistic of every row; sampled rows estimate its error."""
        return self.sample_half_width(influence) * self.share_drawn

    def sample_half_width(self, influence: Float[Tensor, "rows"]) -> float:
        """Half of the 95 % interval of a statistic of the sampled rows, from how much each row moves it."""
        if self.n_windows < 2:
            return nan
        residual = (influence - influence.mean()).to(torch.float64)
        sums = torch.zeros(self.n_windows, dtype=torch.float64).index_add(0, self.window, residual)
        error = sqrt(self.n_windows / (self.n_windows - 1) * float(sums.square().sum())) / len(influence)
        return student_quantile(self.n_windows) * error


def jackknife_half_width(estimates: Float[Tensor, "sets"]) -> float:
    """Half of the 95 % interval of the first estimate, from the others, which leave out one sampled window each."""
    return float(jackknife(estimates)[1])
