"""Figures of the alignment lens: heat maps per head, the trace over depth."""

from collections.abc import Mapping, Sequence
from math import nan

import numpy as np

from headscope.core import Curves, Figure, HeatMap, Series, Site
from headscope.lenses.shared.plots import groups, head_map

Row = tuple[float | None, float | None, float | None, float | None]  # value, null, sd, z
Heads = Mapping[Site, Sequence[Mapping[str, Row]]]
Layers = Mapping[Site, Mapping[str, Row]]


def figures(heads: Heads, layers: Layers) -> tuple[Figure, ...]:
    """All figures, the most telling first."""
    maps = (_trace_map(heads), _symmetry_map(heads), _overlap_map(heads))
    return (*(heat_map for heat_map in maps if np.isfinite(heat_map.values).any()), _trace_by_layer(layers))


def _trace_map(heads: Heads) -> HeatMap:
    return head_map(
        _cells(heads, "trace_share", 0),
        name="trace_share",
        title="Trace of W_QK over the sum of its singular values",
        caption="1: both sides of the weights are the same; −1: opposite; 0: neither. By chance 0 ± "
        f"{_median(heads, 'trace_share', 2):.2g} (one standard deviation).",
        unit="Tr W_QK / Σσ",
        reference=0.0,
        limits=_around(0.0, _cells(heads, "trace_share", 0)),
    )


def _symmetry_map(heads: Heads) -> HeatMap:
    null = _median(heads, "symmetric_share", 1)
    cells = _cells(heads, "symmetric_share", 0)
    return head_map(
        cells,
        name="symmetric_share",
        title="Symmetric share of W_QK",
        caption="1: query and key could be exchanged; 0: every match is one-way. Turned at random: "
        f"{null:.3f} ± {_median(heads, 'symmetric_share', 2):.2g} (one standard deviation).",
        unit="share of ‖W_QK‖²",
        reference=null,
        limits=_around(null, cells),
    )


def _overlap_map(heads: Heads) -> HeatMap:
    values, nulls = (_cells(heads, "subspace_overlap", column) for column in (0, 1))
    return head_map(
        {site: [value / null for value, null in zip(row, nulls[site], strict=True)] for site, row in values.items()},
        name="subspace_overlap",
        title="Overlap of what queries and keys read, in units of the random one",
        caption="Mean squared cosine of the principal angles between the columns of w_q and those of w_k, over its "
        "mean for random subspaces. Above 1: both sides read the same features of a token.",
        unit="measured / random",
        reference=1.0,
    )


def _cells(heads: Heads, quantity: str, column: int) -> dict[Site, list[float]]:
    def cell(head_rows: Mapping[str, Row]) -> float:
        number = head_rows[quantity][column]
        return nan if number is None else number

    return {site: [cell(head_rows) for head_rows in row] for site, row in heads.items()}


def _around(null: float, cells: Mapping[Site, Sequence[float]]) -> tuple[float, float]:
    """Symmetric about the null, as wide as the values."""
    away = [abs(value - null) for row in cells.values() for value in row if value == value]
    width = max(away, default=0.0) or 1.0
    return null - width, null + width


def _median(heads: Heads, quantity: str, column: int) -> float:
    """The median over heads."""
    numbers = [number for row in _cells(heads, quantity, column).values() for number in row if number == number]
    return float(np.median(numbers)) if numbers else 0.0


def _trace_by_layer(layers: Layers) -> Curves:
    series: list[Series] = []
    for group, sites in groups(list(layers)).items():
        x = np.array([float(site.layer) for site in sites])
        values, sds = (np.array([layers[site]["trace"][column] or 0.0 for site in sites]) for column in (0, 2))
        series.append(Series(f"{group} measured".strip(), x, values))
        zero = np.zeros_like(x)
        series.append(Series(f"{group} turned at random, ± 2 sd".strip(), x, zero, -2 * sds, 2 * sds, role="null"))
    return Curves(
        "trace_by_layer",
        "Base alignment by layer: the traces of W_QK, summed over heads",
        "Inside the band a layer cannot be told from one whose queries were turned at random against its keys. Every "
        "query head is paired with the key head that it reads.",
        "layer",
        "Tr(W_Q W_Kᵀ)",
        tuple(series),
    )
