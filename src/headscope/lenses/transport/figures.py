"""Figures of the transport lens: what constant weights miss, by head, stage and depth."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from headscope.core import Curves, Figure, HeatMap, Series, Site
from headscope.lenses.shared.plots import Array, groups, head_map
from headscope.lenses.transport.tables import STAGES

_NAMES = {"heads": "heads", "output": "W_O", "skip": "skip", "norm": "norm", "layer": "layer"}


def figures(tables: Mapping[str, pl.DataFrame], sites: Sequence[Site]) -> tuple[Figure, ...]:
    """All figures, the share of the weights first; what could not be estimated is not drawn."""
    heads, layers = tables["heads"], tables["layers"]
    maps = (
        _map(
            heads,
            sites,
            ("covariance", "share"),
            "Share of the error that is due to weights that depend on the data",
            "Of the squared error of the covariance, predicted for unseen windows. Near 1 more text would not help; "
            "near 0 constant weights are as right as this text can tell.",
        ),
        _map(
            heads,
            sites,
            ("vector", "missed"),
            "What constant weights miss of single outputs",
            "Share of the variance of a head's outputs that is left when its mean weights take the place of its own. "
            "0: the weights do not depend on the data; 1: constant weights explain nothing.",
        ),
    )
    curves = (
        _stages(layers, sites),
        _parts(layers, sites),
        _nats(layers, sites, "entropy"),
        _nats(layers, sites, "information"),
    )
    return (*(figure for figure in maps if figure is not None), *(figure for figure in curves if figure.series))


def _map(
    heads: pl.DataFrame, sites: Sequence[Site], column: tuple[str, str], title: str, caption: str
) -> HeatMap | None:
    quantity, number = column
    rows = heads.filter(pl.col("quantity") == quantity).with_columns(missed=pl.col("value") ** 2)
    cells = {site: _column(_of(rows, site).sort("head"), number) for site in sites}
    if not any(np.isfinite(row).any() for row in cells.values()):
        return None
    return head_map(
        {site: row.tolist() for site, row in cells.items()},
        name=f"{quantity}_{number}",
        title=title,
        caption=caption,
        unit="share",
        limits=(0.0, 1.0),
    )


def _of(table: pl.DataFrame, site: Site) -> pl.DataFrame:
    return table.filter(pl.col("stack") == site.stack, pl.col("kind") == site.kind, pl.col("layer") == site.layer)


def _column(table: pl.DataFrame, name: str) -> Array:
    return table[name].cast(pl.Float64).fill_null(np.nan).to_numpy()


def _course(
    layers: pl.DataFrame, sites: Sequence[Site], stage: str, quantity: str, columns: Sequence[str]
) -> Iterator[tuple[str, Array, list[Array]]]:
    """Per group of sites: layers, and the columns there; layers without the first of them are left out."""
    rows = layers.filter(pl.col("stage") == stage, pl.col("quantity") == quantity, pl.col(columns[0]).is_not_null())
    for group, members in groups(sites).items():
        group_rows = pl.concat([_of(rows, site) for site in members]).sort("layer")
        if group_rows.height:
            yield (
                group,
                group_rows["layer"].cast(pl.Float64).to_numpy(),
                [_column(group_rows, name) for name in columns],
            )


def _stages(layers: pl.DataFrame, sites: Sequence[Site]) -> Curves:
    series: list[Series] = []
    for stage in STAGES:
        for group, x, (value, low, high) in _course(layers, sites, stage, "covariance", ("value", "low", "high")):
            has_interval = np.isfinite(low).all() and stage in ("heads", "layer")
            band = (low, high) if has_interval else (None, None)
            series.append(Series(f"{group} {_NAMES[stage]}".strip(), x, value, *band))
    for group, x, (null,) in _course(layers, sites, "heads", "covariance", ("null",)):
        series.append(Series(f"{group} heads, uniform attention".strip(), x, null, role="null"))
    return Curves(
        "covariance_error",
        "Error of the predicted covariance behind each stage",
        "Difference of predicted and measured covariance over the measured one (Frobenius norm), by layer. Band: 95 % "
        "interval over windows, for heads and the whole layer. Dotted: heads with uniform attention in the place of "
        "the mean pattern.",
        "layer",
        "relative error",
        tuple(series),
        log_y=bool(series) and min(float(np.min(line.y)) for line in series) > 0,
    )


def _parts(layers: pl.DataFrame, sites: Sequence[Site]) -> Curves:
    series: list[Series] = []
    names = {
        "value": "all",
        "weights": "weights depend on the data",
        "sampling": "other windows",
        "shape": "not Gaussian",
    }
    for column, words in names.items():
        for group, x, (value,) in _course(layers, sites, "layer", "covariance", (column,)):
            series.append(
                Series(f"{group} {words}".strip(), x, value, role="null" if column == "sampling" else "measured")
            )
    return Curves(
        "error_parts",
        "What the error at the end of a layer is made of",
        "Relative error of the predicted covariance of what leaves the layer, and the size of each of its parts alone. "
        "Dotted: what two halves of the text differ by, which constant weights would leave too.",
        "layer",
        "relative error",
        tuple(series),
    )


def _nats(layers: pl.DataFrame, sites: Sequence[Site], quantity: str) -> Curves:
    series: list[Series] = []
    for stage in ("heads", "layer"):
        courses = _course(layers, sites, stage, quantity, ("measured", "predicted", "before"))
        for group, x, (measured, predicted, before) in courses:
            name = f"{group} {_NAMES[stage]}".strip()
            series.append(Series(name, x, measured))
            series.append(Series(f"{name}, predicted", x, predicted, role="theory"))
            if stage == "heads" and np.isfinite(before).all():
                series.append(Series(f"{group} values before".strip(), x, before, role="null"))
    title, unit = {
        "entropy": ("Entropy behind heads and layer, measured and predicted", "nats per component"),
        "information": ("Mutual information of neighbouring tokens, measured and predicted", "nats"),
    }[quantity]
    return Curves(
        quantity,
        title,
        "Mean over the heads of a layer, and the output of the whole layer. Dashed: predicted from the other half of "
        "the text. Dotted: the values before attention, along the same axes.",
        "layer",
        unit,
        tuple(series),
    )
