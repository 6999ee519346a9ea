"""Figures of the lens `angles`: heads that follow the cosine, cosine and attention maps, arcs."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from torch import Tensor

from headscope.core import Curves, Figure, HeatMap, Series, Site
from headscope.lenses.angles.arcs import TIMES
from headscope.lenses.angles.map_pair import Picture
from headscope.lenses.shared.map_figures import labelled, lower
from headscope.lenses.shared.plots import Array, groups, head_map

ArcCurves = Sequence[tuple[Tensor, Tensor]]  # at the vectors' own length and at length 1: measured, law


def figures(
    tables: Mapping[str, pl.DataFrame],
    sites: Sequence[Site],
    pictures: Mapping[Site, Picture],
    curves: Mapping[Site, ArcCurves],
) -> tuple[Figure, ...]:
    """All figures, the answer first; what could not be estimated is not drawn."""
    heads = tables["heads"]
    panels: list[Figure] = []
    head_panel = _map(heads, sites)
    if head_panel is not None:
        panels.append(head_panel)
    course = _course(heads, sites)
    panels += [course] if course.series else []
    if "drawn" in tables:
        panels += _pairs_of_maps(tables["drawn"], sites, pictures)
    arcs = _arcs(curves)
    return (*panels, arcs) if arcs.series else tuple(panels)


def _of(table: pl.DataFrame, site: Site) -> pl.DataFrame:
    return table.filter(pl.col("stack") == site.stack, pl.col("kind") == site.kind, pl.col("layer") == site.layer)


def _column(table: pl.DataFrame, name: str) -> Array:
    return table[name].cast(pl.Float64).fill_null(np.nan).to_numpy()


def _map(heads: pl.DataFrame, sites: Sequence[Site]) -> HeatMap | None:
    rows = heads.filter(pl.col("quantity") == "input_rank")
    cells = {site: _column(_of(rows, site).sort("head"), "given_distance") for site in sites}
    correlations = np.concatenate([row[np.isfinite(row)] for row in cells.values()])
    if not len(correlations):
        return None
    # Never so fine that a map of next to nothing looks like a finding.
    top = max(0.3, float(np.abs(correlations).max()))
    return head_map(
        {site: row.tolist() for site, row in cells.items()},
        name="given_distance",
        title="Cosine of the inputs and weight, given the distance",
        caption="Partial rank correlation within rows. Above 0 a head looks at tokens whose vectors point the same "
        "way, below 0 away from them; 0 where angles tell nothing.",
        unit="correlation",
        reference=0.0,
        limits=(-top, top),
    )


def _course(heads: pl.DataFrame, sites: Sequence[Site]) -> Curves:
    series: list[Series] = []
    for quantity, label in (("input_rank", "inputs"), ("embedding_rank", "embeddings")):
        for group, members in groups(sites).items():
            rows = {site.layer: _of(heads.filter(pl.col("quantity") == quantity), site) for site in members}
            cells = {layer: _column(layer_rows, "value") for layer, layer_rows in rows.items()}
            cells = {layer: values[np.isfinite(values)] for layer, values in cells.items() if np.isfinite(values).any()}
            if not cells:
                continue
            x = np.array([float(layer) for layer in cells])
            median, low, high = (
                np.array([f(values) for values in cells.values()]) for f in (np.median, np.min, np.max)
            )
            band = (low, high) if quantity == "input_rank" else (None, None)
            series.append(Series(f"{group} {label}".strip(), x, median, *band))
            if quantity == "input_rank":
                null = np.array([np.nanmedian(_column(rows[int(layer)], "null")) for layer in x])
                series.append(Series(f"{group} tokens shuffled".strip(), x, null, role="null"))
    return Curves(
        "by_layer",
        "Rank correlation of cosine and weight, by layer",
        "Within rows, distance included. Line: the median head; band: from the smallest to the largest head, for the "
        "inputs of the layer. Dotted: tokens of the window shuffled.",
        "layer",
        "rank correlation",
        tuple(series),
    )


def _pairs_of_maps(correlations: pl.DataFrame, sites: Sequence[Site], pictures: Mapping[Site, Picture]) -> list[Figure]:
    """Cosine and attention maps of the first layer, and of the later layer that follows the cosine most."""
    pictured_sites = [site for site in sites if site in pictures]
    rows = correlations.filter(pl.col("quantity") == "input")
    size = {
        site: float(np.nan_to_num(np.abs(_column(_of(rows, site), "rank"))).max(initial=0.0)) for site in pictured_sites
    }
    selected_sites = [
        pictured_sites[0],
        *([max(pictured_sites[1:], key=lambda site: size[site])] if len(pictured_sites) > 1 else []),
    ]
    map_figures: list[Figure] = []
    for number, site in enumerate(selected_sites):
        picture = pictures[site]
        value = float(np.nan_to_num(_column(_of(rows, site), "rank"))[0])
        layer_phrase = "the first layer" if number == 0 else "the later layer in which cosines and weights are nearest"
        cosine = lower(site, picture.inputs.numpy())
        np.fill_diagonal(cosine, np.nan)
        weight = lower(site, picture.weights.numpy())
        np.fill_diagonal(weight, np.nan)
        names = picture.spelling
        map_figures.append(
            HeatMap(
                name=f"cosines_{number}",
                title=f"Cosines of the inputs of {site.label}",
                caption=f"Of the first tokens of the first window: {layer_phrase}; beside the map of attention. A "
                "token with itself (1) is left empty.",
                values=cosine,
                row_labels=tuple(f"{i + 1} {text}" for i, text in enumerate(names)),
                column_labels=tuple(f"{i + 1} {text}" for i, text in enumerate(names)),
                row_axis="from",
                column_axis="to",
                unit="cosine",
                reference=0.0,
            )
        )
        map_figures.append(
            labelled(
                weight,
                names,
                names,
                f"weights_{number}",
                f"Attention of {site.label} between the same tokens",
                f"Averaged over heads. Rank correlation with the cosines within rows: {value:.2f} in this window.",
            )
        )
    return map_figures


def _arcs(curves: Mapping[Site, ArcCurves]) -> Curves:
    series: list[Series] = []
    x = TIMES.numpy()
    for members in groups(list(curves)).values():
        for index in sorted({0, len(members) // 2, len(members) - 1}):
            measured, law = (curve.numpy() for curve in curves[members[index]][0])
            if law[0] > 0:
                series.append(Series(f"{members[index].label}, own length", x, measured / law[0]))
    first = next(iter(curves.values()))
    measured, law = (curve.numpy() for curve in first[1])
    if law[0] > 0:
        series.append(Series(f"{next(iter(curves)).label}, length 1", x, measured / law[0]))
        series.append(Series("law", x, law / law[0], role="theory"))
    return Curves(
        "arcs",
        "Divergence of softmaxes along arcs between real vectors",
        "KL(Softmax(w) | Softmax(u(t))), mean over arcs, in units of what the law for random vectors says at the "
        "start, B(1 − cos θ); no free number. The inputs of the first, the middle and the last layer.",
        "t, from v to w",
        "divergence over the law's start",
        tuple(series),
    )
