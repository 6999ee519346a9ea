"""Refuses inconsistent figures with a clear message, before matplotlib fails.

A figure may come from a stranger's run folder: shapes are checked, and sizes that no page could show.
"""

import numpy as np

from headscope.core import Curves, Figure, Flow, HeatMap, Histogram, Mosaic, Network, Series
from headscope.errors import UsageError

MOST_CELLS = 1_000_000


def check_figure(figure: Figure) -> None:
    """Raise `UsageError` where the arrays of a figure cannot be drawn together."""
    match figure:
        case HeatMap():
            _check_heat_map(figure)
        case Curves():
            _check_series(figure.series, figure.name)
        case Histogram():
            _check_histogram(figure)
        case Mosaic():
            _check_cells(figure.values, f"the mosaic {figure.name!r}")
        case Network():
            _check_network(figure)
        case Flow():
            _check_flow(figure)


def _check_heat_map(figure: HeatMap) -> None:
    labels = (len(figure.row_labels), len(figure.column_labels))
    if figure.values.shape != labels or figure.values.size == 0:
        raise UsageError(f"the heat map {figure.name!r} has {figure.values.shape} values, but labels for {labels}")
    _check_cells(figure.values, f"the heat map {figure.name!r}")
    if figure.panels is not None and not all(figure.panels):
        raise UsageError(f"the heat map {figure.name!r} names no panels, but is a grid of them")


def _check_histogram(figure: Histogram) -> None:
    edges, density = figure.edges, figure.density
    if edges.ndim != 1 or density.ndim != 1 or len(edges) != len(density) + 1:
        raise UsageError(f"the histogram {figure.name!r} has {edges.size} edges, expected {density.size + 1}")
    if not (np.diff(edges) >= 0).all():
        raise UsageError(f"the edges of the histogram {figure.name!r} do not rise")
    _check_series(figure.laws, figure.name)


def _check_series(series: tuple[Series, ...], name: str) -> None:
    for curve in series:
        for values in (curve.y, curve.low, curve.high):
            if values is not None and (curve.x.ndim != 1 or values.shape != curve.x.shape):
                raise UsageError(f"a curve of {name!r} has {curve.x.size} places but {values.size} values")
        if curve.x.size > MOST_CELLS:
            raise UsageError(f"a curve of {name!r} has {curve.x.size} places, expected at most {MOST_CELLS}")


def _check_network(figure: Network) -> None:
    edges = figure.edges
    if not figure.nodes or edges.ndim != 2 or edges.shape[1] != 3:
        raise UsageError(f"the network {figure.name!r} has {len(figure.nodes)} nodes and edges of shape {edges.shape}")
    _check_cells(edges, f"the network {figure.name!r}", empty=True)
    if not ((edges[:, :2] >= 0) & (edges[:, :2] < len(figure.nodes))).all():
        raise UsageError(f"an edge of the network {figure.name!r} leads to a node that it does not have")


def _check_flow(figure: Flow) -> None:
    title, n_boxes, n_columns = f"the flow {figure.name!r}", len(figure.boxes), len(figure.headings)
    _check_cells(figure.bands, title, empty=True)
    if not figure.boxes or len(figure.notes) != n_boxes or figure.columns.shape != (n_boxes,):
        raise UsageError(f"{title} has {n_boxes} boxes, {len(figure.notes)} notes and {figure.columns.size} columns")
    if len(figure.kinds) != len(figure.units):
        raise UsageError(f"{title} has {len(figure.kinds)} kinds of bands and {len(figure.units)} units")
    if figure.bands.shape[1] != 4 or not np.isfinite(figure.bands).all():
        raise UsageError(f"{title} has bands of shape {figure.bands.shape}, expected four finite numbers for each")
    if not np.isin(figure.columns, np.arange(n_columns)).all():
        raise UsageError(f"{title} has a box beyond its {n_columns} columns")
    ends, kinds = figure.bands[:, :2], figure.bands[:, 2]
    if not np.isin(ends, np.arange(n_boxes)).all() or not np.isin(kinds, np.arange(1, len(figure.kinds) + 1)).all():
        raise UsageError(f"a band of {title} has an end or a kind that there is not")
    sources, targets = figure.columns[ends.astype(int)].T
    if not (targets > sources).all():
        raise UsageError(f"a band of {title} does not lead to a later column")


def _check_cells(
    values: np.ndarray[tuple[int, ...], np.dtype[np.float64]], figure_name: str, *, empty: bool = False
) -> None:
    if values.ndim != 2 or (values.size == 0 and not empty):
        raise UsageError(f"{figure_name} has {values.shape} cells, expected rows and columns")
    if values.size > MOST_CELLS:
        raise UsageError(f"{figure_name} has {values.size} cells, expected at most {MOST_CELLS}")
