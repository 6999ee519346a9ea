"""Figures of the focus lens: for each quantity a layer × head heat map and its course over the layers."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from headscope.core import Curves, Figure, HeatMap, Series, Site
from headscope.lenses.shared.plots import Array, groups, head_map

# quantity → title, what the picture says, unit
_TEXTS = {
    "entropy_share": (
        "Entropy, as a share of the largest possible",
        "0: one key has all the attention; 1: all visible keys share it equally.",
        "share",
    ),
    "distance": ("Mean attended distance", "How far from the query the attention lies on average.", "tokens"),
    "first": ("Mass on the first token", "Heads with nothing to say often rest there.", "mass"),
    "diagonal": ("Mass on the token itself", "How much of its attention a token gives to itself.", "mass"),
}


def figures(table: pl.DataFrame, sites: Sequence[Site], widths: Sequence[int]) -> tuple[Figure, ...]:
    """Heat maps, then some of them as curves; what no site has (a distance in cross-attention) is left out."""
    bands = {
        f"band_{width}": (f"Mass within {tokens(width)}", f"On keys with |i − j| ≤ {width}.", "mass")
        for width in widths
    }
    texts = {quantity: text for quantity, text in (_TEXTS | bands).items() if _grid(table, sites, quantity)}
    maps = [_map(table, sites, quantity, *text) for quantity, text in texts.items()]
    followed = {"entropy_share", "distance", "first", *list(bands)[(len(bands) - 1) // 2 :][:1]}
    curves = [
        _course(table, sites, quantity, title, unit)
        for quantity, (title, _, unit) in texts.items()
        if quantity in followed
    ]
    return (*maps, *curves)


def tokens(width: int) -> str:
    """`1 token`, `8 tokens`."""
    return f"{width} token" if width == 1 else f"{width} tokens"


def _map(table: pl.DataFrame, sites: Sequence[Site], quantity: str, title: str, caption: str, unit: str) -> HeatMap:
    uniform = np.concatenate(list(_grid(table, sites, quantity, "uniform").values()))
    cells = _grid(table, sites, quantity)
    # From 0, and never so fine that a map of next to nothing looks like a finding.
    top = max(0.1, *(float(row.max()) for row in cells.values()))
    return head_map(
        {site: row.tolist() for site, row in cells.items()},
        name=quantity,
        title=title,
        caption=f"{caption} Uniform attention: {_span(uniform)}.",
        unit=unit,
        reference=float(uniform.mean()),
        limits={"tokens": None, "share": (0.0, 1.0), "mass": (0.0, top)}[unit],
    )


def _course(table: pl.DataFrame, sites: Sequence[Site], quantity: str, title: str, unit: str) -> Curves:
    series: list[Series] = []
    for group, members in groups(sites).items():
        cells = _grid(table, members, quantity)
        if not cells:
            continue
        x = np.array([float(site.layer) for site in cells])
        low, median, high = (np.array([f(row) for row in cells.values()]) for f in (np.min, np.median, np.max))
        uniform = np.array([row.mean() for row in _grid(table, members, quantity, "uniform").values()])
        series.append(Series(f"{group} median head".strip(), x, median, low, high))
        series.append(Series(f"{group} uniform attention".strip(), x, uniform, role="null"))
    return Curves(
        f"{quantity}_by_layer",
        f"{title}, by layer",
        "Line: the median head of each layer; band: from the smallest to the largest head. "
        "Dotted: attention that is uniform over the visible keys.",
        "layer",
        unit,
        tuple(series),
    )


def _grid(table: pl.DataFrame, sites: Sequence[Site], quantity: str, column: str = "value") -> dict[Site, Array]:
    """The numbers of one quantity per site, in the order of heads; sites without it are left out."""
    rows = table.filter(pl.col("quantity") == quantity, pl.col("value").is_not_null())
    parts = rows.partition_by(["stack", "kind", "layer"], as_dict=True)
    keys = {site: (site.stack, site.kind, site.layer) for site in sites}
    return {
        site: parts[key].sort("head")[column].cast(pl.Float64).to_numpy() for site, key in keys.items() if key in parts
    }


def _span(values: Array) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:.3g}" if high - low <= 0.005 * abs(high) else f"{low:.3g} to {high:.3g}"
