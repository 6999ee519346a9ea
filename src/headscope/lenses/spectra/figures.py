"""Figures of the lens `spectra`: heat maps of heads, curves over layers, spectra."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import log10, nan

import numpy as np
import torch

from headscope.core import Curves, FeedForward, Figure, Histogram, Series, Site
from headscope.lenses.shared.plots import Array, groups, head_map
from headscope.maths.random_matrices.null_spectrum import Comparison, random_distance, unit_law

MATRICES = ("Q", "K", "V", "O")
# On a logarithmic axis the smallest singular values would take up most of a picture and say the least.
_LARGEST_SHARE = 0.95
# More matrices of a layer cannot be distinguished in a picture; their numbers are in the table.
_NAMES = 6

Layers = Mapping[Site, Mapping[str, Comparison]]
Heads = Mapping[Site, Mapping[str, list[Comparison]]]
FeedForwards = Mapping[FeedForward, Comparison]
# For each matrix of each stack: its name, and its spectra by the label of their layer.
Family = dict[str, dict[tuple[str, int], Comparison]]


def figures(
    layers: Layers, heads: Heads, feed_forward: FeedForwards, bins: int, initial_sd: float | None
) -> tuple[Figure, ...]:
    """All figures, the most telling first."""
    attention, fed = _of_attention(layers), _of_feed_forward(feed_forward)
    parts = {"": ("attention", attention), "feed_forward_": ("feed-forward", fed)}
    nonempty_parts = {prefix: part for prefix, part in parts.items() if part[1]}
    return (
        *_rank_maps(heads),
        *_norm_maps(heads),
        *(_mean_square(prefix, *part, initial_sd) for prefix, part in nonempty_parts.items()),
        *(_largest_square(prefix, *part, initial_sd) for prefix, part in nonempty_parts.items()),
        *(_stable_rank(prefix, *part) for prefix, part in nonempty_parts.items()),
        *(figure for prefix, part in nonempty_parts.items() for figure in _distance(prefix, *part)),
        *(_spectra_by_layer(f"spectrum_{m.lower()}", f"W_{m}", _named(attention, f"W_{m}")) for m in MATRICES),
        *(_spectra_by_layer(f"spectrum_{_plain(name)}", name, _named(fed, name)) for name in _names(feed_forward)),
        *_histograms(layers, bins),
    )


def _of_attention(layers: Layers) -> Family:
    family: Family = {}
    for group, sites in groups(list(layers)).items():
        for matrix in MATRICES:
            name = f"{group} W_{matrix}".strip()
            family[name] = {(site.label, site.layer): layers[site][matrix] for site in sites}
    return family


def _names(feed_forward: FeedForwards) -> list[str]:
    """The names that most layers have, so that no picture has too many curves."""
    counts: dict[str, int] = {}
    for matrix in feed_forward:
        counts[matrix.name] = counts.get(matrix.name, 0) + 1
    common = sorted(counts, key=lambda name: -counts[name])[:_NAMES]
    return [name for name in counts if name in common]


def _of_feed_forward(feed_forward: FeedForwards) -> Family:
    family: Family = {}
    names = _names(feed_forward)
    for matrix, comparison in feed_forward.items():
        if matrix.name in names:
            name = matrix.name if matrix.stack == "only" else f"{matrix.stack} {matrix.name}"
            family.setdefault(name, {})[matrix.label.removesuffix(f".{matrix.name}"), matrix.layer] = comparison
    return family


def _named(family: Family, name: str) -> dict[str, Comparison]:
    """The spectra of one matrix over all stacks, by label of their layer."""
    spectra_by_stack = [spectra for key, spectra in family.items() if key == name or key.endswith(f" {name}")]
    return {label: comparison for spectra in spectra_by_stack for (label, _), comparison in spectra.items()}


def _plain(name: str) -> str:
    return name.lower().replace(".", "_")


def _rank_maps(heads: Heads) -> Iterator[Figure]:
    for form, does in (("QK", "compares"), ("OV", "moves")):
        yield head_map(
            {
                site: [comparison.effective_rank / comparison.law.effective_rank for comparison in of_site[form]]
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
            site: [float(torch.linalg.vector_norm(comparison.sigma)) for comparison in of_site[form]]
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


def _curves(family: Family, level: Callable[[Comparison], float]) -> tuple[Series, ...]:
    """One curve over the layers per matrix."""
    return tuple(
        Series(
            name,
            np.array([float(layer) for _, layer in spectra]),
            np.array([level(comparison) for comparison in spectra.values()]),
        )
        for name, spectra in family.items()
    )


def _nulls(family: Family, name: str, level: Callable[[Comparison], float]) -> tuple[Series, ...]:
    """One flat line per shape of matrix; only where they differ does a line name its shape."""
    x = np.array(sorted({float(layer) for spectra in family.values() for _, layer in spectra}))
    comparison_by_shape = {
        tuple(sorted(comparison.sizes)): comparison for spectra in family.values() for comparison in spectra.values()
    }
    levels = {sizes: level(comparison) for sizes, comparison in comparison_by_shape.items()}
    if len({f"{value:.6g}" for value in levels.values()}) == 1:
        return (Series(name, x, np.full_like(x, next(iter(levels.values()))), role="null"),)
    return tuple(
        Series(f"{name}, {sizes[1]} × {sizes[0]}", x, np.full_like(x, value), role="null")
        for sizes, value in levels.items()
    )


def _is_positive(series: Sequence[Series]) -> bool:
    """Whether a logarithmic axis shows anything."""
    return any(bool((curve.y > 0).all()) for curve in series)


def _mean_square(prefix: str, part: str, family: Family, initial_sd: float | None) -> Curves:
    series = _curves(family, lambda comparison: comparison.mean_square)
    nulls: tuple[Series, ...] = ()
    null_caption = ""
    if initial_sd:
        nulls = _nulls(family, "initialised", lambda comparison: comparison.initial(initial_sd)["mean_square"])
        null_caption = f" Dotted: where they began if every entry was drawn with standard deviation {initial_sd:g}."
    return Curves(
        f"{prefix}mean_square",
        f"Mean squared singular value by layer, {part}",
        "How large the matrices of each layer are. The random matrices of the other figures are scaled to this."
        f"{null_caption}",
        "layer",
        "mean σ²",
        (*series, *nulls),
        log_y=_is_positive(series),
    )


def _largest_square(prefix: str, part: str, family: Family, initial_sd: float | None) -> Curves:
    series = _curves(family, lambda comparison: float(comparison.sigma[0]) ** 2)
    nulls: tuple[Series, ...] = ()
    null_caption = ""
    if initial_sd:
        nulls = _nulls(family, "initialised", lambda comparison: comparison.initial(initial_sd)["largest"] ** 2)
        null_caption = " Dotted: the upper edge of the same matrix when it was initialised."
    return Curves(
        f"{prefix}largest_square",
        f"Largest squared singular value by layer, {part}",
        f"How strongly the strongest direction of each layer is stretched.{null_caption}",
        "layer",
        "σ₁²",
        (*series, *nulls),
        log_y=_is_positive(series),
    )


def _stable_rank(prefix: str, part: str, family: Family) -> Curves:
    """Stable rank shows how far the largest value stands out; heat maps show effective rank."""
    series = _curves(family, lambda comparison: comparison.quantities["stable_rank"][0] or nan)
    return Curves(
        f"{prefix}stable_rank",
        f"Stable rank by layer, {part}",
        "How many directions as strong as the strongest would hold the whole energy. Below the dotted line the "
        "strongest direction stands out further than chance lets one in a matrix of the same shape and size.",
        "layer",
        "Σσ² / σ₁²",
        (*series, *_nulls(family, "random", lambda comparison: comparison.law.stable_rank)),
        log_y=_is_positive(series),
    )


def _distance(prefix: str, part: str, family: Family) -> Iterator[Curves]:
    series = _curves(
        family, lambda comparison: (comparison.bulk.distance or nan) / random_distance(len(comparison.sigma))
    )
    series = tuple(curve for curve in series if np.isfinite(curve.y).any())
    if series:
        x = max((curve.x for curve in series), key=len)
        yield Curves(
            f"{prefix}bulk_distance",
            f"Distance of the bulk from the law of a random matrix by layer, {part}",
            "Largest gap between the distribution function of the squared singular values, spikes left out, and "
            "Marchenko–Pastur fitted to their median, in units of the gap that chance leaves. Near the dotted line the "
            "bulk is as random as it can be; far above it the matrix has no random bulk.",
            "layer",
            "largest gap / random",
            (*series, Series("a random matrix", x, np.ones_like(x), role="null")),
            log_y=True,
        )


def _spectra_by_layer(figure: str, matrix: str, spectra: Mapping[str, Comparison]) -> Curves:
    """Spectra over their root mean square, so that layers of one shape share a null."""
    series = []
    for label, comparison in spectra.items():
        indices = _picture_indices(round(_LARGEST_SHARE * len(comparison.sigma)) or 1)
        scale = comparison.mean_square**0.5 or 1.0
        series.append(Series(label, (indices + 0.5) / len(comparison.sigma), comparison.sigma.numpy()[indices] / scale))
    series += [_null_curve(sizes) for sizes in dict.fromkeys(comparison.sizes for comparison in spectra.values())]
    return Curves(
        figure,
        f"Singular values of {matrix}, layer by layer",
        "Sorted from the largest, without the smallest twentieth, divided by their root mean square. "
        "Dotted: a random matrix of the same shape. Steeper than it: few directions dominate.",
        "share of the singular values",
        "σ / root mean square",
        tuple(series),
        log_y=True,
    )


@lru_cache(maxsize=64)
def _null_curve(sizes: tuple[int, ...]) -> Series:
    share = np.linspace(0.002, _LARGEST_SHARE, 150)
    sigma = unit_law(sizes).quantile(torch.from_numpy(1 - share)).sqrt().numpy()
    return Series("Marchenko–Pastur", share, sigma, role="null")


def _picture_indices(n: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Indices of the sorted values in a picture: all of the first, then evenly spaced."""
    evenly = np.linspace(0, n - 1, 100).round().astype(np.int64)
    return np.unique(np.concatenate((np.arange(min(n, 12)), evenly)))


def _histograms(layers: Layers, bins: int) -> Iterator[Histogram]:
    """Histograms of W_Q in the first, the middle and the last layer."""
    sites = list(layers)
    for index in sorted({0, len(sites) // 2, len(sites) - 1}):
        comparison = layers[sites[index]]["Q"]
        if comparison.mean_square > 0:
            yield _histogram(sites[index], comparison, bins)


def _histogram(site: Site, comparison: Comparison, bins: int) -> Histogram:
    low, high = comparison.edges
    # A few outliers would squeeze the bulk into one bar; beyond twice the edge they are counted, not drawn.
    end = min(max(float(comparison.sigma[0]), high) * 1.02, 2 * high)
    sigma = comparison.sigma.numpy()
    beyond = int((sigma > end).sum())
    edges = np.linspace(0.0, end, bins + 1)
    counts, _ = np.histogram(sigma[sigma <= end], bins=edges)
    s = torch.linspace(low, high, 300, dtype=torch.float64)
    law = _law(comparison, s, comparison.mean_square)
    t = torch.linspace(*comparison.bulk.edges, 300, dtype=torch.float64)
    laws = [Series("same Frobenius norm", s.numpy(), law, role="null")]
    if comparison.bulk.mean_square > 0:
        laws.append(
            Series("fitted to the bulk", t.numpy(), _law(comparison, t, comparison.bulk.mean_square), role="theory")
        )
    rows, columns = comparison.sizes
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


def _law(comparison: Comparison, s: torch.Tensor, mean_square: float) -> Array:
    """The null's density of singular values, scaled to this mean square."""
    unit = mean_square**0.5
    density: Array = comparison.law.singular_density(s / unit).numpy() / unit
    return density
