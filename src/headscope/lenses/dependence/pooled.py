"""Pairs of tokens pooled by distance, and the joint Gaussian and mutual information of each pool."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.errors import NumericsError, UsageError
from headscope.lenses.dependence.windows import SiteSample
from headscope.maths.gaussians.gaussian import Gaussian
from headscope.maths.gaussians.information import mutual_information, pointwise_information

# Samples for each dimension in which something is estimated; a pair has twice as many dimensions as a token.
PER_DIMENSION = 10
# Pooled distances begin here: half octaves.
EDGES = (1, *(step << octave for octave in range(24) for step in (2, 3)))


@dataclass(frozen=True)
class PairPools:
    """Pairs of sampled tokens (later, earlier), pooled by distance, and their joint Gaussians.

    `fits` has for each pool one Gaussian per window, of all other windows, and then that of all; `shuffled` the same
    with the later tokens of windows further on: what there is without dependence.
    """

    components: int
    late: Int[Tensor, "pairs"]
    early: Int[Tensor, "pairs"]
    pool: Int[Tensor, "pairs"]
    spans: tuple[tuple[int, int], ...]
    y: Float[Tensor, "windows kept k"]
    fits: Gaussian
    information: Float[Tensor, "pools sets"]
    shuffled: Float[Tensor, "shifts pools sets"]

    def pointwise(self, tokens: Sequence[tuple[Tensor, Tensor]]) -> list[Float[Tensor, "windows pairs"]]:
        """The pointwise information of each pair of (later, earlier) tokens, fitted to other windows."""
        w, k = len(self.y), self.components
        pointwise_maps = [torch.empty(w, len(self.pool), dtype=torch.float64) for _ in tokens]
        for pool in range(len(self.spans)):
            in_pool = self.pool == pool
            parts = [torch.cat((a[:, self.late[in_pool]], b[:, self.early[in_pool]]), -1) for a, b in tokens]
            other_windows = Gaussian(self.fits.mean[pool, :w], self.fits.covariance[pool, :w])
            values = pointwise_information(other_windows, range(k), range(k, 2 * k), torch.cat(parts, 1))
            for pointwise_map, value in zip(pointwise_maps, values.chunk(len(tokens), 1), strict=True):
                pointwise_map[:, in_pool] = value
        return pointwise_maps


def _fits(first: Tensor, second: Tensor, late: Tensor, early: Tensor, pool: Tensor) -> Gaussian:
    """The joint Gaussian of each pool: without each window in turn, then of all windows."""
    moments = []
    for number in range(int(pool.max()) + 1):
        in_pool = pool == number
        z = torch.cat((first[:, late[in_pool]], second[:, early[in_pool]]), -1)
        w, n = z.shape[:2]
        total, products = z.sum(1), z.mT @ z
        count = torch.tensor([[n * (w - 1.0)]] * w + [[1.0 * n * w]], dtype=torch.float64)
        total = torch.cat((total.sum(0) - total, total.sum(0, keepdim=True)))
        products = torch.cat((products.sum(0) - products, products.sum(0, keepdim=True)))
        mean = total / count
        scatter = products - count[..., None] * mean[:, :, None] * mean[:, None, :]
        moments.append((mean, scatter / (count[..., None] - 1)))
    return Gaussian(torch.stack([mean for mean, _ in moments]), torch.stack([cov for _, cov in moments]))


def pooled_pairs(sampled: SiteSample, components: int) -> PairPools | None:
    """Pools of pairs; None with one window, too few pairs, or where one token determines another."""
    w, d = sampled.windows, sampled.x.shape[-1]
    either = sampled.counted | sampled.counted.T
    late, early = torch.tril(either, -1).nonzero().unbind(1)
    rows = sampled.x[:, sampled.inside].reshape(-1, d)
    axes = _axes(rows - rows.mean(0), components)
    k = min(axes.shape[1], len(late) * (w - 1) // (2 * PER_DIMENSION))
    if not k:
        return None
    y = (sampled.x - rows.mean(0)) @ axes[:, :k]
    distance = sampled.distance[late, early]
    pool, spans = _pools(distance, -(-2 * PER_DIMENSION * k // (w - 1)))
    sides = (range(k), range(k, 2 * k))
    try:
        fits = _fits(y, y, late, early, pool)
        information = mutual_information(fits, *sides)
        shuffled = [
            mutual_information(_fits(y.roll(-shift, 0), y, late, early, pool), *sides) for shift in sampled.shifts
        ]
    except (NumericsError, UsageError):
        return None
    return PairPools(k, late, early, pool, spans, y, fits, information, torch.stack(shuffled))


def _axes(centred: Float[Tensor, "rows d"], most: int) -> Float[Tensor, "d k"]:
    """Principal axes with any variance, in columns, the largest first."""
    rows, d = centred.shape
    gram = centred.T @ centred if d <= rows else centred @ centred.T
    values, vectors = torch.linalg.eigh(gram)
    varying = values > 1e-13 * max(rows, d) * values[-1].clamp_min(1e-300)
    values, vectors = values[varying].flip(0)[:most], vectors[:, varying].flip(1)[:, :most]
    axes: Tensor = vectors if d <= rows else centred.T @ vectors / values.sqrt()
    return axes


def _pools(distance: Int[Tensor, "pairs"], enough: int) -> tuple[Int[Tensor, "pairs"], tuple[tuple[int, int], ...]]:
    """Pools of distance: half octaves, merged from the nearest on until each has enough pairs."""
    half = torch.searchsorted(torch.tensor(EDGES), distance, right=True) - 1
    counts = torch.bincount(half)
    of_half, number, pooled_pairs = [], 0, 0
    for index, count in enumerate(counts.tolist()):
        of_half.append(number)
        pooled_pairs += count
        if pooled_pairs >= enough and int(counts[index + 1 :].sum()) >= enough:
            number, pooled_pairs = number + 1, 0
    pool = torch.tensor(of_half)[half]
    distances = [distance[pool == index] for index in range(number + 1)]
    return pool, tuple((int(in_pool.min()), int(in_pool.max())) for in_pool in distances)
