"""Figures of the lens `embeddings`: lengths, cosines, spectra, positions, ranks, with their nulls."""

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt

import numpy as np
import polars as pl
import torch
from scipy import stats

from headscope.core import Curves, Figure, Histogram, Series
from headscope.lenses.embeddings.meaning import Analogies
from headscope.lenses.embeddings.shape import Summary
from headscope.lenses.shared.plots import Array
from headscope.maths.attention.sinusoidal_positions import similarity
from headscope.maths.geometry.cosines import cosine_density
from headscope.maths.random_matrices.null_spectrum import unit_law
from headscope.maths.random_matrices.wishart import mean_length

_BARS = 60
# What lies beyond these shares of the values is not drawn: a few rows would squeeze the others into one bar.
_PLOTTED_SHARES = (0.001, 0.999)


def figures(
    tables: Sequence[Summary], rows: Mapping[str, pl.DataFrame], analogies: Analogies | None
) -> tuple[Figure, ...]:
    """All figures, the most telling first."""
    return (
        *(_lengths(summary) for summary in tables if summary.embedding.role != "position"),
        *(_cosines(summary) for summary in tables if summary.embedding.role != "position"),
        _spectra(tables),
        *_positions(tables, rows),
        *(() if analogies is None else (_ranks(analogies),)),
    )


def _name(prefix: str, summary: Summary) -> str:
    return f"{prefix}_{summary.embedding.label.replace(' ', '_')}"


def _histogram(values: Array, least: float, most: float) -> tuple[Array, Array]:
    low, high = np.quantile(values, _PLOTTED_SHARES)
    low, high = min(low, least), max(high, most)
    edges = np.linspace(low, high if high > low else low + 1, _BARS + 1)
    counts, _ = np.histogram(values, bins=edges)
    return edges, counts / (len(values) * np.diff(edges))


def _lengths(summary: Summary) -> Histogram:
    n, d = summary.sizes
    chi = mean_length(d)
    values = summary.lengths.numpy() / float(summary.lengths.mean())
    null = 4 / sqrt(2 * d)
    edges, density = _histogram(values, 1 - null, 1 + null)
    t = np.linspace(max(1e-6, 1 - null), 1 + null, 200)
    return Histogram(
        _name("lengths", summary),
        f"Lengths of the {summary.embedding.label} vectors",
        f"Length over the mean length of {n} vectors in {d} dimensions. Dotted: Gaussian vectors without preferred "
        "directions, which lie on a sphere as thin as chance makes it.",
        "length / mean length",
        edges,
        density,
        (Series("random vectors", t, chi * stats.chi.pdf(t * chi, d), role="null"),),
    )


def _cosines(summary: Summary) -> Histogram:
    d = summary.sizes[1]
    null = 4 / sqrt(d)
    values = summary.cosines.numpy()
    edges, density = _histogram(values, -null, null)
    t = np.linspace(max(-1 + 1e-9, edges[0]), min(1 - 1e-9, edges[-1]), 300)
    counts, _ = np.histogram(summary.centred_cosines.numpy(), bins=edges)
    around = counts / (len(values) * np.diff(edges))
    return Histogram(
        _name("cosines", summary),
        f"Cosines of two {summary.embedding.label} vectors",
        f"All pairs of {summary.sampled_rows} rows at equal steps through the table (the numbers in the table are over "
        "all rows). Line: about the mean of all rows. Dotted: random directions.",
        "cosine",
        edges,
        density,
        (
            Series("mean vector taken away", (edges[1:] + edges[:-1]) / 2, around),
            Series("random directions", t, cosine_density(torch.from_numpy(t), d).numpy(), role="null"),
        ),
    )


def _spectra(tables: Sequence[Summary]) -> Curves:
    series, laws = [], []
    for summary in tables:
        sigma = summary.spectrum.sigma.numpy()
        scale = sqrt(summary.spectrum.mean_square) or 1.0
        plotted = np.unique(
            np.concatenate((np.arange(min(len(sigma), 12)), np.linspace(0, len(sigma) - 1, 120).round()))
        )
        plotted = plotted.astype(np.int64)
        plotted = plotted[sigma[plotted] > 1e-6 * scale]
        series.append(Series(summary.embedding.label, (plotted + 0.5) / len(sigma), sigma[plotted] / scale))
        share = np.linspace(0.002, 0.98, 150)
        law = unit_law(summary.spectrum.sizes).quantile(torch.from_numpy(1 - share)).clamp_min(1e-9).sqrt().numpy()
        named = "Marchenko–Pastur" if len(tables) == 1 else f"Marchenko–Pastur, {summary.embedding.label}"
        laws.append(Series(named, share, law, role="null"))
    return Curves(
        "spectrum",
        "Singular values of the tables of vectors, their mean taken away",
        "Sorted from the largest, divided by their root mean square. Dotted: independent Gaussian entries in as "
        "large a table. Steeper than it: few directions hold the vectors.",
        "share of the singular values",
        "σ / root mean square",
        (*series, *laws),
        log_y=True,
    )


def _positions(tables: Sequence[Summary], rows: Mapping[str, pl.DataFrame]) -> Iterator[Curves]:
    if "positions" not in rows:
        return
    series = []
    for summary in tables:
        if summary.embedding.role == "position":
            distances = rows["positions"].filter(pl.col("stack").eq_missing(summary.embedding.stack))
            x = distances["distance"].to_numpy().astype(float)
            series += [
                Series(summary.embedding.label, x, distances["value"].to_numpy()),
                Series(f"{summary.embedding.label}, mean taken away", x, distances["centred"].to_numpy()),
            ]
    if not series:
        return
    d = next(summary.sizes[1] for summary in tables if summary.embedding.role == "position")
    x = np.unique(np.geomspace(1, max(float(curve.x.max()) for curve in series), 100).round())
    if d % 2 == 0:
        law = similarity(torch.from_numpy(x), d).numpy() / (d / 2)
        series.append(Series("sinusoidal formula", x, law, role="theory"))
    series.append(Series("random directions", x, np.zeros_like(x), role="null"))
    yield Curves(
        "positions",
        "Cosine of two position vectors over their distance",
        "Mean over all pairs of positions at that distance. Dashed: what the sinusoidal formula of the original "
        "transformer gives in as many dimensions.",
        "distance in tokens",
        "cosine",
        tuple(series),
        log_x=True,
    )


def _ranks(analogies: Analogies) -> Curves:
    r = np.unique(np.geomspace(1, max(2, analogies.candidates), 80).round())
    share = [(ranks.numpy()[:, None] <= r).mean(0) for ranks in (analogies.ranks, analogies.baseline)]
    return Curves(
        "analogies",
        "Analogies: how near the right answer is",
        f"Share of {len(analogies.words)} analogies a : b as c : d in which d is among the r tokens nearest to "
        "b − a + c (a, b and c left out), beside the tokens nearest to c alone. Dotted: a random token.",
        "rank r",
        "share of analogies",
        (
            Series("b − a + c", r, share[0]),
            Series("c alone", r, share[1]),
            Series("random token", r, r / analogies.candidates, role="null"),
        ),
        log_x=True,
    )
