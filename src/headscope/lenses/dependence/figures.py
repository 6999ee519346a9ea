"""Figures of the lens `dependence`: correlation beyond distance over heads, layers and distances."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from headscope.core import Curves, Figure, HeatMap, Series, Site
from headscope.lenses.shared.plots import Array, groups, head_map


def figures(tables: Mapping[str, pl.DataFrame], sites: Sequence[Site]) -> tuple[Figure, ...]:
    """All figures, the answer first; what could not be estimated is not drawn."""
    heads, pairs = tables["heads"], tables["pairs"]
    shifts = pairs.with_columns(size=pl.col("shift") / pl.col("variance").sqrt())
    maps = (
        _map(
            heads,
            sites,
            ("pointwise", "excess"),
            "Attention and dependence, beyond distance",
            "Rank correlation of the pattern with the pointwise mutual information at fixed positions, the key's own "
            "mean taken off, less the same with queries of other windows. Above 0 keys that depend on the query get "
            "more attention.",
        ),
        _map(
            heads,
            sites,
            ("nearness", "value"),
            "Attention and nearness",
            "Rank correlation of the pattern with −|i − j|. Above 0 a head looks at near tokens; without position it "
            "would be 0.",
        ),
        _map(
            heads,
            sites,
            ("trace", "value"),
            "Attention and Tr(CΣ_ji)",
            "Rank correlation of the pattern with the shift of the mean score that dependence causes at that distance, "
            "estimated from other windows.",
        ),
        _map(
            shifts,
            sites,
            ("dependent", "size"),
            "What dependence adds to scores of tokens 1 to 8 apart",
            "Tr(CΣ_ji) in standard deviations of the score; 0 for independent tokens. Above 0 dependence raises "
            "scores.",
            "standard deviations",
        ),
    )
    curves = (_by_layer(tables["joint"], sites), _profile(tables["profile"], sites), _variances(pairs, sites))
    return (
        *(figure for figure in maps if figure is not None and np.isfinite(figure.values).any()),
        *(figure for figure in curves if figure.series),
    )


def _map(
    table: pl.DataFrame,
    sites: Sequence[Site],
    quantity_column: tuple[str, str],
    title: str,
    caption: str,
    unit: str = "correlation",
) -> HeatMap | None:
    rows = table.filter(pl.col("quantity") == quantity_column[0])
    cells = {site: _column(_of(rows, site).sort("head"), quantity_column[1]) for site in sites}
    finite = np.concatenate([row[np.isfinite(row)] for row in cells.values()])
    if not len(finite):
        return None
    # Never so fine that a map of next to nothing looks like a finding.
    top = max(0.1, float(np.abs(finite).max()))
    return head_map(
        {site: row.tolist() for site, row in cells.items()},
        name=f"{quantity_column[0]}_{quantity_column[1]}",
        title=title,
        caption=caption,
        unit=unit,
        reference=0.0,
        limits=(-top, top),
    )


def _of(table: pl.DataFrame, site: Site) -> pl.DataFrame:
    return table.filter(pl.col("stack") == site.stack, pl.col("kind") == site.kind, pl.col("layer") == site.layer)


def _column(table: pl.DataFrame, name: str) -> Array:
    return table[name].cast(pl.Float64).fill_null(np.nan).to_numpy()


def _course(
    table: pl.DataFrame, sites: Sequence[Site], column: str
) -> Iterator[tuple[str, Array, Array, Array, Array]]:
    """Per group of sites: layers, and the median, smallest and largest head of each."""
    for group, members in groups(sites).items():
        cells = {site.layer: _column(_of(table, site), column) for site in members}
        cells = {layer: row[np.isfinite(row)] for layer, row in cells.items() if np.isfinite(row).any()}
        if cells:
            median, low, high = (np.array([f(row) for row in cells.values()]) for f in (np.median, np.min, np.max))
            yield group, np.array([float(layer) for layer in cells]), median, low, high


def _by_layer(joint: pl.DataFrame, sites: Sequence[Site]) -> Curves:
    series: list[Series] = []
    for name in ("pointwise", "cosine"):
        rows = joint.filter(pl.col("quantity") == name, pl.col("layer").is_not_null())
        for group, members in groups(sites).items():
            course = pl.concat([_of(rows, site) for site in members])
            if course.is_empty():
                continue
            x, value, low, high = (_column(course, column) for column in ("layer", "value", "low", "high"))
            ends = (low, high) if np.isfinite(low).any() else (None, None)
            series.append(Series(f"{group} {name}".strip(), x, value, *ends))
    if series:
        x = max((curve.x for curve in series), key=len)
        series.append(Series("other window's query", x, np.zeros_like(x), role="null"))
    return Curves(
        "beyond_by_layer",
        "Correlation with dependence beyond distance, by layer",
        "Rank correlation of the pattern with the pointwise mutual information and with the cosine of the inputs, at "
        "fixed positions, less that with the query of another window: mean over the heads of a layer, with 95 % "
        "intervals over windows.",
        "layer",
        "rank correlation",
        tuple(series),
    )


def _profile(table: pl.DataFrame, sites: Sequence[Site]) -> Curves:
    series: list[Series] = []
    for members in groups(sites).values():
        for index in sorted({0, len(members) // 2, len(members) - 1}):
            rows = _of(table, members[index]).filter(pl.col("value").is_not_null()).sort("distance")
            if rows.height < 2:
                continue
            x = np.sqrt(_column(rows, "distance") * _column(rows, "upto"))
            raw, null = _column(rows, "raw"), _column(rows, "null")
            series.append(Series(members[index].label, x, raw))
            series.append(Series(f"{members[index].label} shuffled", x, null, role="null"))
    k = max(table["dimensions"].to_list(), default=0)
    return Curves(
        "information",
        "Mutual information of two tokens against their distance",
        f"In {k} principal components of the stream that enters the first, the middle and the last layer. Dotted: "
        "tokens of different windows. Both hold the bias of the estimate.",
        "distance in tokens",
        "nats",
        tuple(series),
        log_x=True,
        log_y=True,
    )


def _variances(pairs: pl.DataFrame, sites: Sequence[Site]) -> Curves:
    predicted = pairs.filter(pl.col("predicted_variance") > 0, pl.col("variance") > 0)
    table = predicted.with_columns(ratio=pl.col("variance") / pl.col("predicted_variance"))
    series: list[Series] = []
    for name in ("self", "dependent", "independent"):
        for group, x, median, low, high in _course(table.filter(pl.col("quantity") == name), sites, "ratio"):
            band = (low, high) if name == "dependent" else (None, None)
            series.append(Series(f"{group} {name}".strip(), x, median, *band))
    if series:
        x = max((curve.x for curve in series), key=len)
        series.append(Series("Gaussian vectors", x, np.ones_like(x), role="theory"))
    return Curves(
        "variance_ratio",
        "Variance of scores, measured over predicted, by layer",
        "Line: the median head; band: from the smallest to the largest, for dependent pairs. Independent pairs must "
        "lie at 1 whatever their law; self and dependent ones do if vectors are Gaussian.",
        "layer",
        "measured / predicted",
        tuple(series),
    )
