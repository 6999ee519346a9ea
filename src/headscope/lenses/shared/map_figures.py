"""Maps of attention as heat maps: tokens along both axes, the largest weights in one colour."""

from collections.abc import Sequence

import numpy as np

from headscope.core import HeatMap, Site
from headscope.core.figure import Array

_TOP = 0.98  # values above this quantile of a figure share one colour


def labelled(
    values: Array, rows: Sequence[str], columns: Sequence[str], name: str, title: str, caption: str
) -> HeatMap:
    """A map of weights with the texts of its tokens or words."""
    low, high = limits(values)
    return HeatMap(
        name=name,
        title=title,
        caption=f"{caption} Who looks: down; at what: across. Rows do not sum to 1 where tokens are left out. "
        f"Values above {high:.2g} have one colour.",
        values=values,
        row_labels=tuple(f"{number + 1} {text}" for number, text in enumerate(rows)),
        column_labels=tuple(f"{number + 1} {text}" for number, text in enumerate(columns)),
        row_axis="from",
        column_axis="to",
        unit="weight",
        limits=(low, high),
    )


def limits(values: Array) -> tuple[float, float]:
    """A scale that separates small weights."""
    finite = values[np.isfinite(values)]
    return 0.0, max(float(np.quantile(finite, _TOP)), 1e-6) if finite.size else 1.0


def lower(site: Site, values: Array) -> Array:
    """The map with the cells that a causal site cannot see left empty."""
    cells = np.array(values, dtype=np.float64)
    if site.causal and site.kind == "self":
        cells[np.triu_indices(cells.shape[0], 1, cells.shape[1])] = np.nan
    return cells
