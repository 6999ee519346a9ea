"""Divergence between Gaussians in principal components: of a layer from the next, of positions from later ones."""

from collections.abc import Iterator
from math import inf, nan

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headscope.errors import NumericsError
from headscope.lenses.gaussian.stream import PER_DIMENSION, Layer, jackknife_half_width
from headscope.lenses.gaussian.sums import Sums, left_out
from headscope.lenses.gaussian.tables import estimate_row
from headscope.lenses.shared.table import Row
from headscope.maths.gaussians.information import entropy, kl


def next_row(layer: Layer, follower: Layer) -> Row:
    """D(this layer ‖ next layer), in this layer's principal components."""
    k = min(layer.components, layer.rank, follower.rank, len(layer.position) // PER_DIMENSION)
    this_scores, next_scores = layer.scores(k), layer.projected(follower.parts, k)
    a, b = (Sums.of(y, layer.window, layer.n_windows) for y in (this_scores, next_scores))
    return _kl_row(layer, "kl_next_nats", a, b, k, len(layer.position))


def late_row(layer: Layer) -> Row:
    """D(first half ‖ second half of the windows)."""
    late = layer.late.bool()
    return _between(layer, "kl_late_nats", ~late, late)


def position_rows(layer: Layer) -> Iterator[Row]:
    """Entropy of the tokens at positions 1, 2 to 3, 4 to 7 and so on, and divergence from the next of these groups."""
    octave = layer.position.clamp_min(1).to(torch.float64).log2().floor().to(torch.int64)
    last = int(octave.max())
    for number in range(int(octave.min()), last + 1):
        in_octave = octave == number
        where = (
            {"position": int(layer.position[in_octave].min()), "until": int(layer.position[in_octave].max())}
            if in_octave.any()
            else {}
        )
        if not where or int(in_octave.sum()) < PER_DIMENSION:
            continue
        yield where | _entropy_row(layer, in_octave)
        following = octave == number + 1
        if int(following.sum()) >= PER_DIMENSION:
            yield where | _between(layer, "kl_next_nats", in_octave, following)


def _entropy_row(layer: Layer, in_octave: Bool[Tensor, "rows"]) -> Row:
    samples = int(in_octave.sum())
    k = min(layer.components, layer.rank, samples // PER_DIMENSION)
    counts = {"dimensions": k, "samples": samples, "windows": layer.n_windows}
    if not k:
        return estimate_row(layer.site, "entropy_nats", (nan,) * 4, counts)
    y = layer.scores(k)
    sets = left_out(layer.n_windows)
    every_window = torch.ones(1, layer.n_windows, dtype=torch.float64)
    try:
        entropies = entropy(Sums.of(y[in_octave], layer.window[in_octave], layer.n_windows).pooled(sets).gaussian())
        null = float(entropy(Sums.of(y, layer.window, layer.n_windows).pooled(every_window).gaussian()))
    except NumericsError:
        return estimate_row(layer.site, "entropy_nats", (nan,) * 4, counts)
    half, w = jackknife_half_width(entropies), layer.n_windows
    # A covariance of few rows has too small a determinant; the jackknife over windows estimates by how much.
    value = w * float(entropies[0]) - (w - 1) * float(entropies[1:].mean()) if w > 1 else float(entropies[0])
    return estimate_row(layer.site, "entropy_nats", (value, value - half, value + half, null), counts)


def _between(layer: Layer, quantity: str, in_first: Bool[Tensor, "rows"], in_second: Bool[Tensor, "rows"]) -> Row:
    fewer = min(int(in_first.sum()), int(in_second.sum()))
    k = min(layer.components, layer.rank, fewer // PER_DIMENSION)
    y = layer.scores(k)
    a, b = (Sums.of(y[in_group], layer.window[in_group], layer.n_windows) for in_group in (in_first, in_second))
    return _kl_row(layer, quantity, a, b, k, fewer)


def _kl_row(layer: Layer, quantity: str, a: Sums, b: Sums, k: int, samples: int) -> Row:
    counts = {"dimensions": k, "samples": samples, "windows": layer.n_windows}
    missing = (nan, nan, nan, nan)
    if not k:
        return estimate_row(layer.site, quantity, missing, counts)
    sets = left_out(layer.n_windows)
    try:
        estimates = kl(a.pooled(sets).gaussian(), b.pooled(sets).gaussian())
        keep_sets, change_sets = _exchanged(layer.n_windows)
        mixed = [
            keeping.pooled(keep_sets).plus(changing.pooled(change_sets)).gaussian()
            for keeping, changing in ((a, b), (b, a))
        ]
        null = float(kl(*mixed).mean()) if len(keep_sets) else nan
    except NumericsError:
        return estimate_row(layer.site, quantity, missing, counts)
    value, half = float(estimates[0]), jackknife_half_width(estimates)
    # The bias of a divergence lies between 0 and what the exchanged windows show, so the interval reaches down by that.
    low = max(value - null - half, 0.0) if half < inf else nan
    return estimate_row(layer.site, quantity, (value, low, value + half, null), counts)


def _exchanged(windows: int) -> tuple[Float[Tensor, "sets windows"], Float[Tensor, "sets windows"]]:
    """Which windows keep their side and which change it: runs of 1, 2, 4, … by turns, as many of either."""
    keep, change, run = [], [], 1
    while 2 * run <= windows:
        number = torch.arange(windows)
        used = number < windows - windows % (2 * run)
        keep.append(used & (number // run % 2 == 0))
        change.append(used & (number // run % 2 == 1))
        run *= 2
    nothing = [torch.zeros(0, windows)]
    keep_sets, change_sets = (torch.cat([*nothing, *(mask[None] for mask in rows)]).double() for rows in (keep, change))
    return keep_sets, change_sets
