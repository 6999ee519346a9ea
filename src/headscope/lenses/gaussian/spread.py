"""How a stream is spread: entropy, effective dimension, shrinkage, and the shares of the mean and of first tokens."""

from collections.abc import Iterator
from math import log, nan, pi, sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from headscope.attention.float32_products import product
from headscope.lenses.gaussian.stream import BLOCK, PER_DIMENSION, First, Layer
from headscope.lenses.gaussian.tables import estimate_row
from headscope.lenses.shared.table import Row
from headscope.maths.gaussians.gaussian import shrinkage_weight
from headscope.maths.resampling.jackknife import student_quantile

Numbers = tuple[float, float, float, float]


def spread_rows(layer: Layer) -> Iterator[Row]:
    """Quantities that use every row of the stream; intervals use the sampled rows."""
    n, d, values = layer.moments.count, layer.moments.d, layer.spectrum[0]
    counts = {"samples": n, "windows": layer.windows_in_text}
    weight = float(shrinkage_weight(layer.moments, "ledoit-wolf"))
    # In the dtype of the rows: their products are the largest of this function, and only widths come of them.
    centred = torch.cat([(part.to(torch.float64) - layer.moments.mean).to(part.dtype) for part in layer.parts])
    axes = layer.spectrum[1].to(centred.dtype)

    p = min(layer.rank, n // PER_DIMENSION)
    shrunk = ((1 - weight) * values + weight * float(values.mean()))[:p] * ((n - 1) / n)
    total, energy = float(values.sum()), float(values.square().sum())
    inverse = torch.zeros_like(values)
    inverse[:p] = 1 / shrunk
    # How much each row moves the entropy, the trace and the trace of the square.
    factors = torch.stack((inverse / 2, torch.ones_like(values), values), 1).to(centred.dtype)
    pulls = torch.cat([product(block, axes).square() @ factors for block in torch.split(centred, BLOCK)]).T

    entropy = 0.5 * float((shrunk.log() + log(2 * pi) + 1).sum()) if p else nan
    isotropic = 0.5 * p * (log(2 * pi * float(shrunk.mean())) + 1) if p else nan
    half = layer.half_width(pulls[0])
    numbers = (entropy, entropy - half, entropy + half, isotropic)
    yield estimate_row(layer.site, "entropy_nats", numbers, {"dimensions": p} | counts)

    ratio, half = (total**2 / energy, nan) if energy > 0 else (nan, nan)
    if energy > 0:
        half = ratio * layer.half_width(2 * pulls[1] / total - 2 * pulls[2] / energy)
    numbers = (ratio, *_clipped(ratio, half, 1.0, float(d)), d * (n - 1) / (n + d))
    yield estimate_row(layer.site, "effective_dimension", numbers, {"dimensions": d} | counts)

    numbers = _mean_share(layer, centred, pulls[1])
    yield estimate_row(layer.site, "mean_share", numbers, {"dimensions": d} | counts)
    numbers = (weight, *_shrinkage(layer, centred, pulls[1], pulls[2]))
    yield estimate_row(layer.site, "shrinkage", numbers, {"dimensions": d} | counts)
    counts = {"dimensions": d, "samples": n + layer.first.count, "windows": layer.windows_in_text}
    yield estimate_row(layer.site, "first_share", _first_share(layer), counts)


def _clipped(value: float, half: float, least: float, most: float) -> tuple[float, float]:
    """The ends of an interval of a quantity that cannot leave its range."""
    return (min(max(value - half, least), most), max(min(value + half, most), least)) if half == half else (nan, nan)


def _mean_share(layer: Layer, centred: Float[Tensor, "rows d"], lengths: Float[Tensor, "rows"]) -> Numbers:
    r"""$|\mu|^2 / (|\mu|^2 + \mathrm{tr}\,S)$, how much of the mean squared length is that of the mean."""
    mean, n = layer.moments.mean, layer.moments.count
    squared_mean, trace = float(mean.square().sum()), float(layer.moments.scatter.diagonal().sum()) / n
    if not squared_mean + trace:
        return nan, nan, nan, nan
    pull = (2 * trace * (centred @ mean.to(centred.dtype)) - squared_mean * lengths) / (squared_mean + trace) ** 2
    share, chance = squared_mean / (squared_mean + trace), _chance_mean(layer, centred, trace)
    null = chance / (chance + trace) if trace else nan  # a stream that stands still is all mean, whatever chance does
    return share, *_clipped(share, layer.half_width(pull), 0.0, 1.0), null


def _chance_mean(layer: Layer, centred: Float[Tensor, "rows d"], trace: float) -> float:
    """Mean squared length of the mean of rows around 0 that depend on each other within a window as these do."""
    w = layer.n_windows
    if w < 2:
        return trace / layer.moments.count
    rows_by_window = torch.split(centred, [len(part) for part in layer.parts])
    sums = torch.stack([rows.sum(0, dtype=torch.float64) for rows in rows_by_window])
    within = sums - sums.sum(0) / len(centred) * torch.bincount(layer.window, minlength=w)[:, None]
    return w / (w - 1) * float(within.square().sum()) / len(centred) ** 2 * layer.share_drawn**2


def _shrinkage(
    layer: Layer,
    centred: Float[Tensor, "rows d"],
    lengths: Float[Tensor, "rows"],
    turned: Float[Tensor, "rows"],
) -> tuple[float, float, float]:
    r"""Interval of the weight of Ledoit and Wolf, and the weight for Gaussian rows with the same covariance.

    The weight is $(q - E)\,/\,n\delta$ with $q = \overline{|c|^4}$, $E = |S|_F^2$, $t = \mathrm{tr} S$ and
    $\delta = E - t^2 / d$; for a Gaussian $q = t^2 + 2E$. A row moves q by $|c|^4 - 4 c^\top \overline{|c|^2 c}$, E by
    $2 c^\top S c$ and the trace by $|c|^2$, each less its mean.
    """
    n, d = layer.moments.count, layer.moments.d
    values = layer.spectrum[0] * ((n - 1) / n)
    trace, energy = float(values.sum()), float(values.square().sum())
    distance = energy - trace**2 / d
    if distance <= 1e-15 * energy:
        return nan, nan, nan
    weight = (float(layer.moments.quartic) / n - energy) / (n * distance)
    skew = (layer.moments.cubic / n).to(centred.dtype)
    moved = 2 * turned * ((n - 1) / n)
    pull = (lengths.square() - 4 * (centred @ skew) - moved) / (n * distance)
    pull = pull - weight * (moved - 2 * trace / d * lengths) / distance
    low, high = _clipped(weight, layer.half_width(pull), 0.0, 1.0)
    return low, high, min(1.0, (trace**2 + energy) / (n * distance))


def _first_share(layer: Layer) -> Numbers:
    """The share of variance due to the tokens left out; a ratio of two sums over windows, hence its interval."""
    later_tokens = First(layer.moments.count, layer.moments.mean, float(layer.moments.scatter.diagonal().sum()))
    all_tokens = later_tokens.merge(layer.first)
    null = layer.first.count / all_tokens.count
    if not all_tokens.spread > 0:
        return nan, nan, nan, null
    share, w = 1 - later_tokens.spread / all_tokens.spread, layer.n_windows
    if w < 2:
        return share, nan, nan, null
    later_sums, all_sums = (
        layer.window_sums(layer.squared_distances(mean)) for mean in (later_tokens.mean, all_tokens.mean)
    )
    left = (layer.left.to(torch.float64) - all_tokens.mean).square().sum(1)
    all_sums = all_sums.index_add(0, layer.left_window, left)
    gap = later_sums - (1 - share) * all_sums
    error = sqrt(w / (w - 1) * float((gap - gap.mean()).square().sum())) / float(all_sums.sum())
    return share, *_clipped(share, student_quantile(w) * error * layer.share_drawn, 0.0, 1.0), null
