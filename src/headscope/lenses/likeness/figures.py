"""The pictures of the lens `likeness`: effects at distance 0, and over distances."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from headscope.core import Curves, Figure, Series, Site
from headscope.lenses.shared.plots import groups, head_map


def figures(table: pl.DataFrame, sites: Sequence[Site]) -> tuple[Figure, ...]:
    """Each head at distance 0, and the layers over distances."""
    itself = table.filter(pl.col("distance") == 0)
    cells = {site: _effects(itself, site) for site in sites}
    cells = {site: row for site, row in cells.items() if row}
    pictures: list[Figure] = []
    if cells:
        top = max(max(abs(value) for value in row) for row in cells.values())
        pictures.append(
            head_map(
                cells,
                name="itself",
                title="How a token scores itself, beside an unrelated token in the same place",
                caption="Difference of the mean scores in units of the spread of unrelated scores. 0 (white): no "
                "difference. The table has the 95 % interval of each.",
                unit="standard deviations",
                reference=0.0,
                limits=(-max(top, 1e-9), max(top, 1e-9)),
            )
        )
    pictures.append(_distances(table, sites))
    return tuple(pictures)


def _effects(itself: pl.DataFrame, site: Site) -> list[float]:
    rows = itself.filter(
        pl.col("stack") == site.stack, pl.col("kind") == site.kind, pl.col("layer") == site.layer
    ).sort("head")
    return [float("nan") if value is None else value for value in rows["effect"].to_list()]


def _distances(table: pl.DataFrame, sites: Sequence[Site]) -> Curves:
    """The median head of three layers over the distances, with the spread of its heads."""
    series: list[Series] = []
    for members in groups(list(sites)).values():
        for index in sorted({0, len(members) // 2, len(members) - 1}):
            site = members[index]
            rows = table.filter(
                pl.col("stack") == site.stack, pl.col("layer") == site.layer, pl.col("effect").is_not_null()
            )
            x = sorted(set(rows["distance"].to_list()))
            if not x:
                continue
            values = [rows.filter(pl.col("distance") == distance)["effect"].to_numpy() for distance in x]
            low, median, high = (np.array([np.quantile(row, q) for row in values]) for q in (0.1, 0.5, 0.9))
            series.append(Series(site.label, np.array(x, dtype=np.float64), median, low, high))
    if series:
        ends = np.array([series[0].x[0], max(float(part.x[-1]) for part in series)])
        series.append(Series("unrelated tokens", ends, np.zeros(2), role="null"))
    return Curves(
        "distances",
        "Scores of tokens of one text, by distance",
        "Mean score of a query with the key that many tokens before it, less that of unrelated tokens in the same "
        "places, in units of their spread. Line: the median head of the first, the middle and the last layer; band: "
        "from the tenth to the ninetieth of a hundred heads.",
        "distance, tokens",
        "standard deviations",
        tuple(series),
    )
