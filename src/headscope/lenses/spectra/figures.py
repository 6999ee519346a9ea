"""Figures of the spectra lens: heat maps per head, curves over layers, spectra beside their null."""

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
_SHOWN = 0.95
# More matrices of one layer than this are not told apart in a picture; their numbers are in the table.
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
    shown = {prefix: part for prefix, part in parts.items() if part[1]}
    return (
        *_rank_maps(heads),
        *_norm_maps(heads),
        *(_mean_square(prefix, *part, initial_sd) for prefix, part in shown.items()),
        *(_largest_square(prefix, *part, initial_sd) for prefix, part in shown.items()),
        *(_stable_rank(prefix, *part) for prefix, part in shown.items()),
        *(one for prefix, part in shown.items() for one in _distance(prefix, *part)),
        *(_spectra_by_layer(f"spectrum_{m.lower()}", f"W_{m}", _named(attention, f"W_{m}")) for m in MATRICES),
        *(_spectra_by_layer(f"spectrum_{_plain(name)}", name, _named(fed, name)) for name in _names(feed_forward)),
        *_histograms(layers, bins),
    )


def _of_attention(layers: Layers) -> Family:
    found: Family = {}
    for group, sites in groups(list(layers)).items():
        for matrix in MATRICES:
            name = f"{group} W_{matrix}".strip()
            found[name] = {(site.label, site.layer): layers[site][matrix] for site in sites}
    return found


def _names(feed_forward: FeedForwards) -> list[str]:
    """The names that most layers have, so that no picture has too many curves."""
    counts: dict[str, int] = {}
    for one in feed_forward:
        counts[one.name] = counts.get(one.name, 0) + 1
    common = sorted(counts, key=lambda name: -counts[name])[:_NAMES]
    return [name for name in counts if name in common]


def _of_feed_forward(feed_forward: FeedForwards) -> Family:
    found: Family = {}
    names = _names(feed_forward)
    for one, comparison in feed_forward.items():
        if one.name in names:
            name = one.name if one.stack == "only" else f"{one.stack} {one.name}"
            found.setdefault(name, {})[one.label.removesuffix(f".{one.name}"), one.layer] = comparison
    return found


def _named(family: Family, name: str) -> dict[str, Comparison]:
    """The spectra of one matrix over all stacks, by label of their layer."""
    some = [spectra for key, spectra in family.items() if key == name or key.endswith(f" {name}")]
    return {label: one for spectra in some for (label, _), one in spectra.items()}


def _plain(name: str) -> str:
    return name.lower().replace(".", "_")


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


def _curves(family: Family, level: Callable[[Comparison], float]) -> tuple[Series, ...]:
    """One curve over the layers per matrix."""
    return tuple(
        Series(
            name, np.array([float(layer) for _, layer in spectra]), np.array([level(one) for one in spectra.values()])
        )
        for name, spectra in family.items()
    )


def _nulls(family: Family, name: str, level: Callable[[Comparison], float]) -> tuple[Series, ...]:
    """One flat line per shape of matrix; only where they differ does a line name its shape."""
    x = np.array(sorted({float(layer) for spectra in family.values() for _, layer in spectra}))
    ones = {tuple(sorted(one.sizes)): one for spectra in family.values() for one in spectra.values()}
    levels = {sizes: level(one) for sizes, one in ones.items()}
    if len({f"{value:.6g}" for value in levels.values()}) == 1:
        return (Series(name, x, np.full_like(x, next(iter(levels.values()))), role="null"),)
    return tuple(
        Series(f"{name}, {sizes[1]} × {sizes[0]}", x, np.full_like(x, value), role="null")
        for sizes, value in levels.items()
    )


def _is_positive(series: Sequence[Series]) -> bool:
    """Whether a logarithmic axis shows anything."""
    return any(bool((one.y > 0).all()) for one in series)


def _mean_square(prefix: str, part: str, family: Family, initial_sd: float | None) -> Curves:
    series = _curves(family, lambda one: one.mean_square)
    nulls: tuple[Series, ...] = ()
    said = ""
    if initial_sd:
        nulls = _nulls(family, "initialised", lambda one: one.initial(initial_sd)["mean_square"])
        said = f" Dotted: where they began if every entry was drawn with standard deviation {initial_sd:g}."
    return Curves(
        f"{prefix}mean_square",
        f"Mean squared singular value by layer, {part}",
        f"How large the matrices of each layer are. The random matrices of the other figures are scaled to this.{said}",
        "layer",
        "mean σ²",
        (*series, *nulls),
        log_y=_is_positive(series),
    )


def _largest_square(prefix: str, part: str, family: Family, initial_sd: float | None) -> Curves:
    series = _curves(family, lambda one: float(one.sigma[0]) ** 2)
    nulls: tuple[Series, ...] = ()
    said = ""
    if initial_sd:
        nulls = _nulls(family, "initialised", lambda one: one.initial(initial_sd)["largest"] ** 2)
        said = " Dotted: the upper edge of the same matrix when it was initialised."
    return Curves(
        f"{prefix}largest_square",
        f"Largest squared singular value by layer, {part}",
        f"How strongly the strongest direction of each layer is stretched.{said}",
        "layer",
        "σ₁²",
        (*series, *nulls),
        log_y=_is_positive(series),
    )


def _stable_rank(prefix: str, part: str, family: Family) -> Curves:
    """Not effective rank: this one tells how far the largest value stands out, and the heat maps show the other."""
    series = _curves(family, lambda one: one.quantities["stable_rank"][0] or nan)
    return Curves(
        f"{prefix}stable_rank",
        f"Stable rank by layer, {part}",
        "How many directions as strong as the strongest would hold the whole energy. Below the dotted line the "
        "strongest direction stands out further than chance lets one in a matrix of the same shape and size.",
        "layer",
        "Σσ² / σ₁²",
        (*series, *_nulls(family, "random", lambda one: one.law.stable_rank)),
        log_y=_is_positive(series),
    )


def _distance(prefix: str, part: str, family: Family) -> Iterator[Curves]:
    series = _curves(family, lambda one: (one.bulk.distance or nan) / random_distance(len(one.sigma)))
    series = tuple(one for one in series if np.isfinite(one.y).any())
    if series:
        x = max((one.x for one in series), key=len)
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
    """Divided by their root mean square, so that one null serves all layers of the same shape."""
    series = []
    for label, one in spectra.items():
        kept = _kept(round(_SHOWN * len(one.sigma)) or 1)
        scale = one.mean_square**0.5 or 1.0
        series.append(Series(label, (kept + 0.5) / len(one.sigma), one.sigma.numpy()[kept] / scale))
    series += [_null_curve(sizes) for sizes in dict.fromkeys(one.sizes for one in spectra.values())]
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
