"""Figures of the spectra lens: heat maps per head, curves over layers, spectra beside their null."""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from math import log10, nan

import numpy as np
import torch

from headscope.core import Curves, Figure, Histogram, Series, Site
from headscope.lenses.figures.layout import Array, groups, head_map
from headscope.maths.comparison import Comparison, random_distance, unit_law

MATRICES = ("Q", "K", "V", "O")
# On a logarithmic axis the smallest singular values would take up most of a picture and say the least.
_SHOWN = 0.95

Layers = Mapping[Site, Mapping[str, Comparison]]
Heads = Mapping[Site, Mapping[str, list[Comparison]]]


def figures(layers: Layers, heads: Heads, bins: int, initial_sd: float | None) -> tuple[Figure, ...]:
    """All figures, the most telling first."""
    return (
        *_rank_maps(heads),
        *_norm_maps(heads),
        _largest_by_layer(layers),
        _size_by_layer(layers, initial_sd),
        *_distance_by_layer(layers),
        *(_spectra_by_layer(layers, matrix) for matrix in MATRICES),
        *_histograms(layers, bins),
    )


def _rank_maps(heads: Heads) -> Iterator[Figure]:
    for form, does in (("QK", "compares"), ("OV", "moves")):
        yield head_map(
            {
                site: [one.effective_rank / one.law.effective_rank for one in of_site[form]]
                for site, of_site in heads.items()
            },
            name=f"{form.lower()}_effective_rank",
            title=f"Effective rank of W_{form}, as a share of the random one",
            caption="1: as many directions as a product of two random matrices of the same shape. "
            f"Where it is small, what the head {does} lies in few directions.",
            unit="measured / random",
            reference=1.0,
            limits=(0.0, 1.0),
        )


def _norm_maps(heads: Heads) -> Iterator[Figure]:
    for form, does in (("QK", "compares"), ("OV", "moves")):
        norms = {
            site: [float(torch.linalg.vector_norm(one.sigma)) for one in of_site[form]]
            for site, of_site in heads.items()
        }
        if any(norm > 0 for row in norms.values() for norm in row):
            yield head_map(
                {site: [log10(norm) if norm > 0 else nan for norm in row] for site, row in norms.items()},
                name=f"{form.lower()}_norm",
                title=f"Frobenius norm of W_{form}, logarithmic",
                caption="Root of the sum of squared singular values, as a power of ten: "
                f"how strongly the head {does} at all.",
                unit="log₁₀ of the norm",
            )


def _by_layer(layers: Layers) -> Iterator[tuple[str, Array, list[Comparison]]]:
    """For each matrix of each stack: its name, the layers, the spectra."""
    for group, sites in groups(list(layers)).items():
        x = np.array([float(site.layer) for site in sites])
        for matrix in MATRICES:
            yield f"{group} W_{matrix}".strip(), x, [layers[site][matrix] for site in sites]


def _size_by_layer(layers: Layers, initial_sd: float | None) -> Curves:
    measured = tuple(
        Series(name, x, np.array([one.mean_square for one in found])) for name, x, found in _by_layer(layers)
    )
    series, said = measured, ""
    if initial_sd:
        series += _nulls(layers, "initialised", lambda one: one.initial(initial_sd)["mean_square"])
        said = f" Dotted: where they began if every entry was drawn with standard deviation {initial_sd:g}."
    return Curves(
        "mean_square",
        "Mean squared singular value, by layer",
        "How large the four projections of each layer are. The random matrices of the other figures are "
        f"scaled to these values.{said}",
        "layer",
        "mean σ²",
        series,
        log_y=any(bool((one.y > 0).all()) for one in measured),
    )


def _nulls(layers: Layers, name: str, level: Callable[[Comparison], float]) -> tuple[Series, ...]:
    """One flat line per shape of matrix; only where they differ does a line name its shape."""
    x = np.array(sorted({float(site.layer) for site in layers}))
    ones = {tuple(sorted(one.sizes)): one for of_site in layers.values() for one in of_site.values()}
    levels = {sizes: level(one) for sizes, one in ones.items()}
    if len({f"{value:.6g}" for value in levels.values()}) == 1:
        return (Series(name, x, np.full_like(x, next(iter(levels.values()))), role="null"),)
    return tuple(
        Series(f"{name}, {sizes[1]} × {sizes[0]}", x, np.full_like(x, value), role="null")
        for sizes, value in levels.items()
    )


def _distance_by_layer(layers: Layers) -> Iterator[Curves]:
    series = [
        Series(name, x, np.array([(one.bulk.distance or nan) / random_distance(len(one.sigma)) for one in found]))
        for name, x, found in _by_layer(layers)
    ]
    series = [one for one in series if np.isfinite(one.y).any()]
    if series:
        x = max((one.x for one in series), key=len)
        yield Curves(
            "bulk_distance",
            "How far the bulk is from the law of a random matrix, by layer",
            "Largest gap between the distribution function of the squared singular values, spikes left out, and "
            "Marchenko–Pastur fitted to their median, in units of the gap that chance leaves. Near the dotted line the "
            "bulk is as random as it can be; far above it the projection has no random bulk.",
            "layer",
            "largest gap / random",
            (*series, Series("a random matrix", x, np.ones_like(x), role="null")),
            log_y=True,
        )


def _largest_by_layer(layers: Layers) -> Curves:
    series = []
    for name, x, found in _by_layer(layers):
        ratios = [float(one.sigma[0]) / one.edges[1] if one.mean_square > 0 else np.nan for one in found]
        series.append(Series(name, x, np.square(ratios)))
    x = max((one.x for one in series), key=len)
    series.append(Series("upper edge of a random matrix", x, np.ones_like(x), role="null"))
    return Curves(
        "largest",
        "Largest squared singular value, in units of the random edge",
        "Above the dotted line the strongest direction is stronger than chance makes one in a matrix of the "
        "same shape and Frobenius norm.",
        "layer",
        "σ₁² / upper Marchenko–Pastur edge",
        tuple(series),
        log_y=True,
    )


def _spectra_by_layer(layers: Layers, matrix: str) -> Curves:
    """Divided by their root mean square, so that one null serves all layers of the same shape."""
    series = []
    for site, of_site in layers.items():
        one = of_site[matrix]
        kept = _kept(round(_SHOWN * len(one.sigma)) or 1)
        scale = one.mean_square**0.5 or 1.0
        series.append(Series(site.label, (kept + 0.5) / len(one.sigma), one.sigma.numpy()[kept] / scale))
    shapes = dict.fromkeys(of_site[matrix].sizes for of_site in layers.values())
    series += [_null_curve(sizes) for sizes in shapes]
    return Curves(
        f"spectrum_{matrix.lower()}",
        f"Singular values of W_{matrix}, layer by layer",
        "Sorted from the largest, without the smallest twentieth, divided by their root mean square. "
        "Dotted: a random matrix of the same shape. Steeper than it: few directions dominate.",
        "share of the singular values",
        "σ / root mean square",
        tuple(series),
        log_y=True,
    )


@lru_cache(maxsize=64)
def _null_curve(sizes: tuple[int, ...]) -> Series:
    share = np.linspace(0.002, _SHOWN, 150)
    sigma = unit_law(sizes).quantile(torch.from_numpy(1 - share)).sqrt().numpy()
    return Series("Marchenko–Pastur", share, sigma, role="null")


def _kept(n: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Which of n sorted values to draw: the first ones all, the rest evenly."""
    evenly = np.linspace(0, n - 1, 100).round().astype(np.int64)
    return np.unique(np.concatenate((np.arange(min(n, 12)), evenly)))


def _histograms(layers: Layers, bins: int) -> Iterator[Histogram]:
    """Of W_Q in the first, the middle and the last layer."""
    sites = list(layers)
    for index in sorted({0, len(sites) // 2, len(sites) - 1}):
        one = layers[sites[index]]["Q"]
        if one.mean_square > 0:
            yield _histogram(sites[index], one, bins)


def _histogram(site: Site, one: Comparison, bins: int) -> Histogram:
    low, high = one.edges
    # A few outliers would squeeze the bulk into one bar; beyond twice the edge they are counted, not drawn.
    end = min(max(float(one.sigma[0]), high) * 1.02, 2 * high)
    sigma = one.sigma.numpy()
    beyond = int((sigma > end).sum())
    edges = np.linspace(0.0, end, bins + 1)
    counts, _ = np.histogram(sigma[sigma <= end], bins=edges)
    s = torch.linspace(low, high, 300, dtype=torch.float64)
    law = _law(one, s, one.mean_square)
    t = torch.linspace(*one.bulk.edges, 300, dtype=torch.float64)
    laws = [Series("same Frobenius norm", s.numpy(), law, role="null")]
    if one.bulk.mean_square > 0:
        laws.append(Series("fitted to the bulk", t.numpy(), _law(one, t, one.bulk.mean_square), role="theory"))
    rows, columns = one.sizes
    outside = f" {beyond} larger values, up to {sigma[0]:.3g}, lie outside the picture." if beyond else ""
    return Histogram(
        f"histogram_q_{site.label.lower().replace('.', '_')}",
        f"Singular values of W_Q in {site.label}",
        f"Bars: the {len(sigma)} singular values of the {rows} × {columns} matrix. Curves: Marchenko–Pastur "
        f"for Gaussian entries of the same shape, with the same Frobenius norm (its edges are marked) and with the "
        f"same median.{outside}",
        "singular value σ",
        edges,
        counts / len(sigma) / np.diff(edges),
        laws=tuple(laws),
        marks=(("lower edge", low), ("upper edge", high)),
    )


def _law(one: Comparison, s: torch.Tensor, mean_square: float) -> Array:
    """The null's density of singular values, scaled to this mean square."""
    unit = mean_square**0.5
    density: Array = one.law.singular_density(s / unit).numpy() / unit
    return density
