"""Means and covariances of one half of the windows, and of that half without each of its windows.

The covariance is that of a token around the mean of its position, averaged over positions: covariances of single
positions would need as many windows as there are dimensions. With one window in a half there is no mean of a position:
then the mean over positions takes its place.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, nan, pi

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headscope.maths.linear_algebra.symmetric import gram_matrix

# Samples for each dimension in which something is estimated.
PER_DIMENSION = 10


@dataclass(frozen=True)
class Frame:
    """What all laws of one stage share: the halves, the axes, and how far apart the tokens of a pair are.

    `pairs` is the number of axes kept for pairs of tokens, 0 where there are too few. `sets` are all windows and, where
    `jackknife`, all but each.
    """

    odd: Bool[Tensor, "windows"]
    axes: Float[Tensor, "d k"]
    pairs: int
    distance: int
    jackknife: bool

    @property
    def sets(self) -> int:
        """Sets of windows for which everything is estimated."""
        return 1 + len(self.odd) if self.jackknife else 1

    def members(self, half: int) -> list[int]:
        """The windows of a half."""
        return [index for index, odd in enumerate(self.odd.tolist()) if odd == bool(half)]


@dataclass(frozen=True)
class Law:
    """One half: means by position, and covariances of tokens and of pairs, with all its windows and without each."""

    frame: Frame
    half: int
    mean: Float[Tensor, "positions d"]
    centred: Float[Tensor, "members positions d"]
    covariance: Float[Tensor, "half_sets k k"]
    joint: Float[Tensor, "half_sets both both"]

    @classmethod
    def of(cls, x: Float[Tensor, "windows positions d"], frame: Frame, half: int) -> "Law":
        """Of the windows of a half."""
        half_vectors = x[frame.members(half)]
        mean = half_vectors.mean(0)
        centred = half_vectors - mean
        y = centred @ frame.axes
        c, t = frame.pairs, frame.distance
        joint = torch.cat((y[:, t:, :c], y[:, : y.shape[1] - t, :c]), -1)
        covariance, joint_covariance = (_covariances(part, jackknife=frame.jackknife) for part in (y, joint))
        return cls(frame, half, mean, centred, covariance, joint_covariance)

    def means(self, part: slice) -> Float[Tensor, "half_sets positions d"]:
        """The means of some positions with all windows and without each."""
        mean = self.mean[None, part]
        if not self.frame.jackknife:
            return mean
        return torch.cat((mean, mean - self.centred[:, part] / (len(self.centred) - 1)))

    def in_every_set(self, x: Float[Tensor, "half_sets *numbers"]) -> Float[Tensor, "sets *numbers"]:
        """Numbers of this half in every set of windows: a window that is left out changes those of its half only."""
        half_set = torch.zeros(self.frame.sets, dtype=torch.int64)
        if self.frame.jackknife:
            half_set[1:][self.frame.odd == bool(self.half)] = torch.arange(1, len(x))
        return x[half_set]


def _covariances(y: Float[Tensor, "members positions k"], *, jackknife: bool) -> Float[Tensor, "half_sets k k"]:
    n, positions = y.shape[:2]
    scatter = gram_matrix(y)
    total = scatter.sum(0)
    of_all = total / ((n - 1) * positions) if n > 1 else total * nan
    if not jackknife:
        return of_all[None]
    # Without a window the mean moves too: its part counts n/(n − 1) times.
    return torch.cat((of_all[None], (total - scatter * (n / (n - 1))) / ((n - 2) * positions)))


def principal_axes(centred: Sequence[Float[Tensor, "_ d"]], most: int) -> Float[Tensor, "d k"]:
    """Principal axes of rows in columns, the largest first; only those along which there is any variance."""
    rows = torch.cat(list(centred))
    n, d = rows.shape
    # All of them, by torch: scipy has a solver for the largest alone, but its threads wait for each other.
    values, vectors = torch.linalg.eigh(gram_matrix(rows if d <= n else rows.T))
    has_variance = values > 1e-13 * max(n, d) * values[-1].clamp_min(1e-300)
    values, vectors = values[has_variance].flip(0)[:most], vectors[:, has_variance].flip(1)[:, :most]
    axes: Tensor = vectors if d <= n else rows.T @ vectors / values.sqrt()
    return axes


def entropies(covariance: Float[Tensor, "*sets k k"]) -> Float[Tensor, "*sets"]:
    """Entropy of Gaussians in nats per dimension; NaN where one has no density."""
    k = max(1, covariance.shape[-1])
    return 0.5 * (log(2 * pi) + 1 + _log_determinants(covariance) / k)


def informations(joint: Float[Tensor, "*sets both both"]) -> Float[Tensor, "*sets"]:
    """Mutual information of the two tokens of a pair in nats; NaN where one determines a part of the other."""
    c = joint.shape[-1] // 2
    alone = _log_determinants(joint[..., :c, :c]) + _log_determinants(joint[..., c:, c:])
    return 0.5 * (alone - _log_determinants(joint))


def _log_determinants(matrix: Float[Tensor, "*sets k k"]) -> Float[Tensor, "*sets"]:
    if not matrix.shape[-1]:
        return torch.full(matrix.shape[:-2], nan, dtype=torch.float64)
    factor, info = torch.linalg.cholesky_ex(torch.nan_to_num(matrix))
    diagonal = torch.diagonal(factor, dim1=-2, dim2=-1)
    scale = torch.diagonal(matrix, dim1=-2, dim2=-1).amax(-1).clamp_min(1e-300).sqrt()
    bad = (info != 0) | (diagonal.amin(-1) < 1e-7 * scale) | ~torch.isfinite(matrix).all(-1).all(-1)
    return torch.where(bad, nan, 2 * diagonal.clamp_min(1e-300).log().sum(-1))
