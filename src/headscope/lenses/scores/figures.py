"""Figures of the lens scores."""

from collections.abc import Mapping, Sequence
from math import nan, pi, sqrt

import numpy as np
import polars as pl

from headscope.core import Curves, Figure, HeatMap, Histogram, Series, Site
from headscope.lenses.shared.plots import Array, groups, head_map

# Standardised scores are counted in these bins.
EDGES: Array = np.linspace(-6.0, 6.0, 61)
_SCALES = {"trained": "as trained", "root_d": "scale 1/√d", "unscaled": "no scale"}
_TERMS = ("constant", "position", "content")


def figures(tables: Mapping[str, pl.DataFrame], sites: Sequence[Site], histogram: Array) -> tuple[Figure, ...]:
    """The law of the scores, variance and entropy against theory, flatness, Jacobian, bound and terms."""
    heads = tables["heads"]
    candidates: list[Figure | None] = [
        _standardised(histogram),
        _variance_map(heads, sites),
        _entropy_map(heads, sites),
        _entropy_by_layer(heads, sites),
        _freezing_map(heads, sites),
        _jacobian_by_layer(heads, sites),
        _bound_map(tables["bounds"], sites),
        *(_term_map(part) for part in tables["terms"].partition_by("stack", maintain_order=True)),
    ]
    return tuple(figure for figure in candidates if figure is not None)


def _standardised(histogram: Array) -> Histogram | None:
    counts, total = histogram[:-1], float(histogram[-1])
    if not total:
        return None
    x = np.linspace(-6, 6, 241)
    law = Series("normal law", x, np.exp(-x * x / 2) / sqrt(2 * pi), role="theory")
    beyond = 1 - counts.sum() / total
    return Histogram(
        "standardised",
        "Scores within their row",
        "Each score less the mean of its row, over the row's standard deviation; all heads together. On this "
        "logarithmic axis a normal law is a parabola; weights of such rows would be log-normal. Bars above the curve "
        f"on the right are keys that stand out. Beyond ±6: {100 * beyond:.2g} %.",
        "score, in standard deviations of its row",
        EDGES,
        counts / total / np.diff(EDGES),
        (law,),
        log_y=True,
    )


def _cells(
    table: pl.DataFrame, sites: Sequence[Site], quantity: str | None, *columns: str
) -> dict[Site, tuple[Array, ...]]:
    """Columns of one quantity per site, in the order of heads, empty cells as NaN; sites without any are left out."""
    rows = table if quantity is None else table.filter(pl.col("quantity") == quantity)
    parts = rows.partition_by(["stack", "kind", "layer"], as_dict=True)
    cells_by_site: dict[Site, tuple[Array, ...]] = {}
    for site in sites:
        part = parts.get((site.stack, site.kind, site.layer))
        if part is not None:
            ordered = part.sort("head")
            cells = tuple(ordered[column].cast(pl.Float64).fill_null(nan).to_numpy() for column in columns)
            if all(np.isfinite(cell).any() for cell in cells):
                cells_by_site[site] = cells
    return cells_by_site


def _variance_map(heads: pl.DataFrame, sites: Sequence[Site]) -> HeatMap | None:
    cells = _cells(heads, sites, "row_variance", "value", "predicted")
    ratios = {
        site: np.log2(np.where((a > 0) & (b > 0), a / np.where(b > 0, b, 1.0), nan)) for site, (a, b) in cells.items()
    }
    ratios = {site: row for site, row in ratios.items() if np.isfinite(row).any()}
    if not ratios:
        return None
    width = max(1.0, *(float(np.nanmax(np.abs(row))) for row in ratios.values()))
    return head_map(
        {site: row.tolist() for site, row in ratios.items()},
        name="row_variance",
        title="Variance of the scores within a row, measured over predicted",
        caption="0: as for independent Gaussian tokens; 1: twice as large; −1: half. Above 0 the head tells tokens of "
        "one text, or their distances, apart; below 0 the keys of one text are more alike than keys of all texts.",
        unit="log₂ (measured / predicted)",
        reference=0.0,
        limits=(-width, width),
    )


def _entropy_map(heads: pl.DataFrame, sites: Sequence[Site]) -> HeatMap | None:
    cells = _cells(heads, sites, "entropy_share", "value", "predicted")
    gaps = {site: a - b for site, (a, b) in cells.items()}
    if not gaps:
        return None
    width = max(0.05, *(float(np.nanmax(np.abs(row))) for row in gaps.values()))
    return head_map(
        {site: row.tolist() for site, row in gaps.items()},
        name="entropy_gap",
        title="Entropy: measured less that of Gaussian scores",
        caption="Both as shares of the largest possible, without the first token; the Gaussian scores have the "
        "variance of each measured row. Below 0: a few keys stand out more than a normal law allows; "
        "above: fewer keys than that stand out.",
        unit="share of ln n",
        reference=0.0,
        limits=(-width, width),
    )


def _entropy_by_layer(heads: pl.DataFrame, sites: Sequence[Site]) -> Curves | None:
    series: list[Series] = []
    for group, members in groups(sites).items():
        cells = _cells(heads, members, "entropy_share", "value", "predicted")
        everything = _cells(heads, members, "entropy_share_all", "value")
        if not cells:
            continue
        x = np.array([float(site.layer) for site in cells])
        rows = [row for row, _ in cells.values()]
        low, median, high = (np.array([f(row) for row in rows]) for f in (np.nanmin, np.nanmedian, np.nanmax))
        series.append(Series(f"{group} median head".strip(), x, median, low, high))
        with_first = np.array([np.nanmedian(everything[site][0]) if site in everything else nan for site in cells])
        series.append(Series(f"{group} with the first token".strip(), x, with_first))
        theory = np.array([np.nanmedian(row) for _, row in cells.values()])
        series.append(Series(f"{group} Gaussian scores".strip(), x, theory, role="theory"))
    if not series:
        return None
    return Curves(
        "entropy_by_layer",
        "Entropy by layer, and what the variance of the scores predicts",
        "Medians over heads; band: from the smallest to the largest head. 1: every visible key has the same weight.",
        "layer",
        "share of ln n",
        tuple(series),
    )


def _freezing_map(heads: pl.DataFrame, sites: Sequence[Site]) -> HeatMap | None:
    cells = _cells(heads, sites, "freezing", "value")
    if not cells:
        return None
    top = max(float(np.nanmax(row)) for (row,) in cells.values())
    return head_map(
        {site: row.tolist() for site, (row,) in cells.items()},
        name="freezing",
        title="How flat: deviation within a row over √(2 ln n)",
        caption="Below 1 the weights of many keys add up; above 1 a few keys take everything, as in the random "
        "energy model. 0 is uniform attention. "
        f"Colours end at 2; the largest value is {top:.2g}.",
        unit="σ / σ_c",
        reference=1.0,
        limits=(0.0, 2.0),
    )


def _jacobian_by_layer(heads: pl.DataFrame, sites: Sequence[Site]) -> Curves | None:
    series: list[Series] = []
    for group, members in groups(sites).items():
        cells_by_scale = {name: _cells(heads, members, f"jacobian_{name}", "value", "null") for name in _SCALES}
        if cells_by_scale["root_d"] and all(
            np.allclose(cells_by_scale["root_d"][site][0], cells[0], rtol=1e-6, equal_nan=True)
            for site, cells in cells_by_scale["trained"].items()
            if site in cells_by_scale["root_d"]
        ):
            cells_by_scale["root_d"] = {}
        for name, cells in cells_by_scale.items():
            if cells:
                x = np.array([float(site.layer) for site in cells])
                y = np.array([np.nanmedian(value) for value, _ in cells.values()])
                label = _SCALES[name] if name != "trained" or cells_by_scale["root_d"] else "as trained (scale 1/√d)"
                series.append(Series(f"{group} {label}".strip(), x, y))
        if cells_by_scale["trained"]:
            x = np.array([float(site.layer) for site in cells_by_scale["trained"]])
            null = np.array([np.nanmean(uniform) for _, uniform in cells_by_scale["trained"].values()])
            series.append(Series(f"{group} uniform attention".strip(), x, null, role="null"))
    if not series or not any((curve.y > 0).any() for curve in series):
        return None
    return Curves(
        "jacobian_by_layer",
        "Norm of the softmax's Jacobian, by layer",
        "By how much a small change of scores can change the weights; 1/2 is the largest possible. Medians over heads.",
        "layer",
        "largest eigenvalue",
        tuple(series),
        log_y=True,
    )


def _bound_map(bounds: pl.DataFrame, sites: Sequence[Site]) -> HeatMap | None:
    cells = _cells(bounds, sites, None, "value", "bound")
    if not cells:
        return None
    return head_map(
        {site: (a / np.where(b > 0, b, nan)).tolist() for site, (a, b) in cells.items()},
        name="bound_reached",
        title="The largest |score| as a share of the Cauchy–Schwarz bound",
        caption="1: query and key of that pair are parallel.",
        unit="|cos(q, k)|",
        limits=(0.0, 1.0),
    )


def _term_map(of_stack: pl.DataFrame) -> HeatMap | None:
    """Of one stack: its first layer."""
    stack, layer = of_stack.row(0, named=True)["stack"], of_stack.row(0, named=True)["layer"]
    who = "" if stack == "only" else f"{stack} "
    names = [f"{a}_{b}" for a in _TERMS for b in _TERMS[1:]]
    rows = [
        of_stack.filter(pl.col("quantity") == name).sort("head")["share"].fill_null(nan).to_numpy() for name in names
    ]
    values = np.stack(rows)
    if not np.isfinite(values).any():
        return None
    return HeatMap(
        name=f"terms_{stack}",
        title=f"What the scores of {who}layer {layer} tell keys apart by",
        caption="Shares of the variance within a row, by what of the query and what of the key it comes from. Constant "
        "is the mean query: it prefers keys whatever the query.",
        values=values,
        row_labels=tuple(name.replace("_", " · ") for name in names),
        column_labels=tuple(f"H{head}" for head in range(values.shape[1])),
        row_axis="query · key",
        unit="share",
        limits=(0.0, 1.0),
    )
