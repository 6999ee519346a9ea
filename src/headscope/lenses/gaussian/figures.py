"""Figures of the gaussian lens: numbers over layers, information over distance, divergence over positions."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from headscope.core import Curves, Figure, Series, Site
from headscope.lenses.shared.plots import Array, groups


def figures(tables: Mapping[str, pl.DataFrame], sites: Sequence[Site]) -> tuple[Figure, ...]:
    """All figures, the most telling first; what could not be estimated is not drawn."""
    layers = tables["layers"]
    per_dimension = layers.with_columns(pl.col("value", "low", "high", "null") / pl.col("dimensions"))
    candidates = (
        _information(tables["information"], sites),
        Curves(
            "neighbours",
            "What a token shares with those before it, by layer",
            f"Mutual information of the last of {_most(tables['joint'], 'tokens')} neighbours with the others, "
            f"in {_most(tables['joint'], 'dimensions')} principal components each, less what tokens of different "
            "windows give. Dotted: those.",
            "layer",
            "nats",
            tuple(_course(tables["joint"], "last_token_nats", sites, "shuffled")),
        ),
        _curve(tables["components"], sites),
        _tails(tables["components"], sites),
        Curves(
            "effective_dimension",
            "Effective dimension, by layer",
            "In how many directions the variance of the residual stream effectively lies. Dotted: isotropic Gaussian "
            "samples of the same number.",
            "layer",
            "(Σλ)² / Σλ²",
            tuple(_course(layers, "effective_dimension", sites, "isotropic samples")),
            log_y=True,
        ),
        Curves(
            "entropy",
            "Entropy per dimension, by layer",
            "Of the Gaussian with the stream's covariance. Dotted: the isotropic one with the same variance, the most "
            "there can be. Where vectors grow from layer to layer, both rise.",
            "layer",
            "nats per dimension",
            tuple(_course(per_dimension, "entropy_nats", sites, "isotropic")),
        ),
        Curves(
            "divergence",
            "Divergence from the next layer, and of the early from the late half of a window",
            "Between Gaussians in the layer's first principal components. Dotted: the two sides exchanged in half "
            "of the windows, which leaves only the noise of the estimate.",
            "layer",
            "nats",
            (
                *_course(layers, "kl_next_nats", sites, "next layer, exchanged", "next layer"),
                *_course(layers, "kl_late_nats", sites, "early and late, exchanged", "early against late"),
            ),
            log_y=True,
        ),
        _positions(tables["positions"], sites),
    )
    return tuple(figure for figure in candidates if figure.series)


def _most(table: pl.DataFrame, column: str) -> int:
    return max(table[column].to_list(), default=0)


def _positions(table: pl.DataFrame, sites: Sequence[Site]) -> Curves:
    """The divergence of each group of positions from the next, in three layers; small groups have fewer components."""
    rows = table.filter(pl.col("quantity") == "kl_next_nats", pl.col("value").is_not_null())
    k = _most(rows, "dimensions")
    rows = rows.filter(pl.col("dimensions") == k)
    series: list[Series] = []
    for members in groups(sites).values():
        for index in sorted({0, len(members) // 2, len(members) - 1}):
            course = _of(rows, members[index]).sort("position")
            if course.is_empty():
                continue
            x, label = np.fmax(_column(course, "position"), 1.0), members[index].label
            low, high = _interval(course)
            # On a logarithmic axis an interval that reaches 0 is cut off.
            floor = 0.2 * np.nanmin(np.fmin(_column(course, "value"), _column(course, "null")))
            series.append(
                Series(label, x, _column(course, "value"), None if low is None else np.fmax(low, floor), high)
            )
            if course["null"].null_count() < course.height:
                series.append(Series(f"{label} exchanged", x, _column(course, "null"), role="null"))
    return Curves(
        "positions",
        "Divergence of tokens at a position from those further on",
        "Positions from one power of two to the next against the group behind them, in the first, the middle and the "
        f"last stream, in {k} principal components; groups too small for that are left out. Where the line "
        "comes down to the dotted one (the two groups exchanged in half of the windows), "
        "the stream no longer depends on the position.",
        "position, first of the group",
        "nats",
        tuple(series),
        log_x=True,
        log_y=True,
    )


def _of(table: pl.DataFrame, site: Site) -> pl.DataFrame:
    return table.filter(pl.col("stack") == site.stack, pl.col("kind") == site.kind, pl.col("layer") == site.layer)


def _column(table: pl.DataFrame, name: str) -> Array:
    return table[name].cast(pl.Float64).fill_null(np.nan).to_numpy()


def _course(table: pl.DataFrame, quantity: str, sites: Sequence[Site], null: str, name: str = "") -> Iterator[Series]:
    """A quantity over the layers of each stack, with its interval, and its null."""
    rows = table.filter(pl.col("quantity") == quantity, pl.col("value").is_not_null())
    for group, members in groups(sites).items():
        course = pl.concat([_of(rows, site) for site in members])
        if course.is_empty():
            continue
        x = _column(course, "layer")
        label = " ".join(part for part in (group, name or "measured") if part)
        yield Series(label, x, _column(course, "value"), *_interval(course))
        if course["null"].null_count() < course.height:
            yield Series(f"{group} {null}".strip(), x, _column(course, "null"), role="null")


def _interval(rows: pl.DataFrame) -> tuple[Array | None, Array | None]:
    if rows["low"].null_count() == rows.height:
        return None, None
    return _column(rows, "low"), _column(rows, "high")


def _information(table: pl.DataFrame, sites: Sequence[Site]) -> Curves:
    series: list[Series] = []
    k = max(table["dimensions"].to_list(), default=0)
    for members in groups(sites).values():
        for index in sorted({0, len(members) // 2, len(members) - 1}):
            rows = _of(table, members[index]).filter(pl.col("value").is_not_null()).sort("distance")
            if rows.is_empty():
                continue
            x, label = _column(rows, "distance"), members[index].label
            null, raw, value = (_column(rows, name) for name in ("null", "raw", "value"))
            low, high = (None if end is None else end + raw - value for end in _interval(rows))
            # On a logarithmic axis an interval that reaches 0 is cut off.
            floor = 0.2 * np.nanmin(np.fmin(raw, null))
            series.append(Series(label, x, raw, None if low is None else np.fmax(low, floor), high))
            if np.isfinite(null).any():
                series.append(Series(f"{label} shuffled", x, null, role="null"))
    return Curves(
        "information",
        "Mutual information of two tokens against their distance",
        f"In the first {k} principal components of the first, the middle and the last layer, as if Gaussian, with 95 % "
        "intervals, cut off where they reach 0. Dotted: each window paired with another one. Both hold the bias of the "
        "estimate; the tables say what is left without it.",
        "distance in tokens",
        "nats",
        tuple(series),
        log_x=True,
        log_y=True,
    )


def _tails(table: pl.DataFrame, sites: Sequence[Site]) -> Curves:
    """Kurtosis over that of Gaussian samples by layer, for a few, some and many components."""
    rows = table.filter(pl.col("quantity") == "relative_kurtosis", pl.col("value").is_not_null())
    sizes = sorted(set(rows["dimensions"].to_list()))
    series: list[Series] = []
    for group, members in groups(sites).items():
        for size in sorted({sizes[index] for index in (0, len(sizes) // 2, len(sizes) - 1)} if sizes else ()):
            course = pl.concat([_of(rows, site) for site in members]).filter(pl.col("dimensions") == size)
            if course.is_empty():
                continue
            label = f"{group} {size} components".strip()
            series.append(Series(label, _column(course, "layer"), _column(course, "value"), *_interval(course)))
    if series:
        x = max((curve.x for curve in series), key=len)
        series.append(Series("Gaussian", x, np.zeros_like(x), role="null"))
    return Curves(
        "tails",
        "How much heavier than Gaussian the tails are, by layer",
        "Mardia's kurtosis over its Gaussian value, less 1, in the first principal components, with 95 % intervals "
        "over windows. Dotted: a Gaussian.",
        "layer",
        "relative excess kurtosis",
        tuple(series),
    )


def _curve(table: pl.DataFrame, sites: Sequence[Site]) -> Curves:
    """Information of neighbours against the number of components, in three layers."""
    rows = table.filter(pl.col("quantity") == "information_nats", pl.col("value").is_not_null())
    series: list[Series] = []
    for members in groups(sites).values():
        for index in sorted({0, len(members) // 2, len(members) - 1}):
            course = _of(rows, members[index]).sort("dimensions")
            if course.height < 2:
                continue
            x, label = _column(course, "dimensions"), members[index].label
            series.append(Series(label, x, _column(course, "value"), *_interval(course)))
            if course["null"].null_count() < course.height:
                series.append(Series(f"{label} shuffled", x, _column(course, "null"), role="null"))
    return Curves(
        "information_components",
        "Mutual information of neighbours against the number of components",
        "Less what tokens of different windows give, with 95 % intervals over windows, in the first, the middle and "
        "the last stream. Dotted: tokens of different windows.",
        "principal components of each token",
        "nats",
        tuple(series),
        log_x=True,
    )
