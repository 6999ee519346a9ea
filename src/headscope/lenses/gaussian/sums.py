"""Sums over the rows of each window, from which any set of windows is pooled without touching the rows again."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.maths.gaussians.gaussian import Gaussian
from headscope.maths.linear_algebra.symmetric import gram_matrix


@dataclass(frozen=True)
class Sums:
    """Count, sum and sum of products of the rows of each window; differences and exchanges of windows stay sums."""

    count: Float[Tensor, "*set"]
    total: Float[Tensor, "*set k"]
    products: Float[Tensor, "*set k k"]

    @classmethod
    def of(cls, y: Float[Tensor, "rows k"], window: Int[Tensor, "rows"], windows: int) -> "Sums":
        """Of rows, by window."""
        counts = torch.bincount(window, minlength=windows)
        starts = counts.cumsum(0) - counts
        # Window by window in one padded block, so that the products are one batch.
        block = torch.zeros(windows, int(counts.max()) if windows else 0, y.shape[1], dtype=torch.float64)
        block[window, torch.arange(len(y)) - starts[window]] = y
        return cls(counts.to(torch.float64), block.sum(1), block.mT @ block)

    def pooled(self, weights: Float[Tensor, "sets windows"]) -> "Sums":
        """One entry for each row of weights over the windows."""
        return Sums(weights @ self.count, weights @ self.total, torch.einsum("sw,wij->sij", weights, self.products))

    def plus(self, other: "Sums") -> "Sums":
        """Of the rows of both."""
        return Sums(self.count + other.count, self.total + other.total, self.products + other.products)

    def gaussian(self) -> Gaussian:
        """Mean and unbiased covariance."""
        n = self.count[..., None]
        mean = self.total / n
        scatter = self.products - n[..., None] * mean[..., :, None] * mean[..., None, :]
        return Gaussian(mean, scatter / (n[..., None] - 1))


def left_out(windows: int) -> Float[Tensor, "sets windows"]:
    """All windows, then all but each."""
    every_window = torch.ones(1, windows, dtype=torch.float64)
    return torch.cat((every_window, 1 - torch.eye(windows, dtype=torch.float64))) if windows > 1 else every_window


def summed(y: Float[Tensor, "rows k"]) -> Sums:
    """Of all rows, as a set of one."""
    return Sums(torch.tensor([float(len(y))], dtype=torch.float64), y.sum(0)[None], gram_matrix(y)[None])


def stacked(parts: Sequence[Sums]) -> Sums:
    """The sets of all of them, one after the other."""
    return Sums(
        torch.cat([part.count for part in parts]),
        torch.cat([part.total for part in parts]),
        torch.cat([part.products for part in parts]),
    )
