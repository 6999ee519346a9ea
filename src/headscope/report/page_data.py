"""The data of all heads as JSON: what the script of a page reads (`frontend/src/data.ts` has the same contract)."""

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headscope.core import HeadCurve, HeadPatterns, Run, SitePatterns
from headscope.report.head_choice import role_groups
from headscope.report.head_grid import Array, Head, HeadColumn, HeadGrid

PAGE_TOKENS = 64  # of the pattern of every head
_DIGITS = 5  # significant digits; the run folder holds all of them
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&"}  # json itself escapes everything beyond ASCII


def data_script(name: str, data: object) -> str:
    """Data for the script of the page, under the id `data-NAME`."""
    return f'<script type="application/json" id="data-{name}">{json_for_html(data)}</script>'


def json_for_html(data: object) -> str:
    """JSON that is safe inside a `<script>` element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.translate(_ESCAPES)


def number_json(value: float | int | None) -> float | int | None:
    """A number with the digits of the page; None where JSON has no such number."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded


def numbers_json(values: Iterable[float | int | None]) -> list[float | int | None]:
    """Numbers with the digits of the page."""
    return [number_json(value) for value in values]


def atlas_json(run: Run, grid: HeadGrid) -> dict[str, Any]:
    """The heads of the model, every number about them, and their curves."""
    curves = [
        _curve_json(finding.lens, curve, grid.heads) for finding in run.findings.values() for curve in finding.curves
    ]
    return {**grid_json(run.model.name, grid), "curves": curves}


def grid_json(model: str, grid: HeadGrid) -> dict[str, Any]:
    """Heads and every number about them, without curves."""
    return {
        "model": model,
        "panels": panels_json(grid),
        "heads": heads_json(grid),
        "quantities": [_quantity_json(column) for column in grid.columns],
        "curves": [],
    }


def panels_json(grid: HeadGrid) -> list[dict[str, Any]]:
    """The grids of heads."""
    return [
        {"title": panel.title, "layers": panel.layers, "columns": panel.columns, "causal": panel.causal}
        for panel in grid.panels
    ]


def heads_json(grid: HeadGrid) -> list[dict[str, Any]]:
    """The heads by label and place, with the names of their roles."""
    roles: dict[int, list[str]] = {}
    for group in role_groups(grid):
        for head in group.heads:
            roles.setdefault(head, []).append(group.column.quantity.role)
    return [
        {"label": head.label, "panel": head.panel, "layer": head.site.layer, "head": head.head}
        | {"roles": roles.get(place, [])}
        for place, head in enumerate(grid.heads)
    ]


def _quantity_json(column: HeadColumn) -> dict[str, Any]:
    quantity = column.quantity
    nulls = column.common_null if column.nulls is None or column.common_null is not None else column.nulls
    return {
        "key": column.key,
        "lens": column.lens,
        "lens_title": column.lens_title,
        "label": quantity.label,
        "unit": quantity.unit,
        "meaning": column.question,
        "scale": quantity.scale,
        "notable": quantity.notable,
        "ends": [quantity.lowest, quantity.highest],
        "values": numbers_json(column.values.tolist()),
        "nulls": numbers_json(nulls.tolist()) if isinstance(nulls, np.ndarray) else number_json(nulls),
    }


def _curve_json(lens: str, curve: HeadCurve, heads: Sequence[Head]) -> dict[str, Any]:
    rows = {label: row for row, label in enumerate(curve.heads)}
    places = [rows.get(head.label) for head in heads]
    return {
        "lens": lens,
        "label": curve.label,
        "x_axis": curve.x_axis,
        "y_axis": curve.y_axis,
        "x": numbers_json(curve.x.tolist()),
        "values": [None if row is None else _short_numbers(curve.values[row]) for row in places],
        "law": _laws(curve, places),
        "law_label": curve.law_label,
        "log_x": curve.log_x,
        "log_y": curve.log_y,
    }


def _laws(curve: HeadCurve, places: Sequence[int | None]) -> list[list[float | int | None] | None] | None:
    """The law of each head, or of all in one row."""
    if curve.law is None:
        return None
    if len(curve.law) == 1:
        return [_short_numbers(curve.law[0])]
    return [None if row is None else _short_numbers(curve.law[row]) for row in places]


def _short_numbers(values: Array) -> list[float | int | None]:
    """Numbers of a picture: three digits are more than the eye sees."""
    return [number_json(float(f"{value:.3g}")) for value in values.tolist()]


def patterns_json(patterns: HeadPatterns, grid: HeadGrid, cards: Sequence[int]) -> dict[str, Any]:
    """The maps of all heads on a few tokens, and those of some heads (`cards`) on all tokens that the run holds.

    A byte means the root of a weight's share of the largest (`SitePatterns`). In causal attention a row holds its own
    place and those before it.
    """
    sites = [patterns.at(head.site) for head in grid.heads]
    by_panel = {head.panel: site for head, site in zip(grid.heads, sites, strict=True) if site is not None}
    largest = [
        None if site is None else number_json(float(site.largest[head.head]))
        for head, site in zip(grid.heads, sites, strict=True)
    ]
    return {
        "size": PAGE_TOKENS,
        "tokens": [_tokens_json(patterns, by_panel.get(panel)) for panel in range(len(grid.panels))],
        "largest": largest,
        "maps": [_map_json(site, head, PAGE_TOKENS) for head, site in zip(grid.heads, sites, strict=True)],
        "cards": {str(place): _map_json(sites[place], grid.heads[place], None) for place in cards},
    }


def _tokens_json(patterns: HeadPatterns, site: SitePatterns | None) -> dict[str, Any]:
    queries, keys = ((), ()) if site is None else (patterns.texts[site.query_text], patterns.texts[site.key_text])
    sizes = {"n_queries": len(queries), "n_keys": len(keys)}
    return {"queries": queries[:PAGE_TOKENS], "keys": keys[:PAGE_TOKENS]} | sizes


def _map_json(site: SitePatterns | None, head: Head, size: int | None) -> str | None:
    if site is None:
        return None
    levels: NDArray[Any] = site.levels[head.head][:size, :size]
    if site.causal:
        rows, columns = levels.shape
        levels = levels[np.tril(np.ones((rows, columns), dtype=bool))]
    return base64.b64encode(np.ascontiguousarray(levels).tobytes()).decode()


def head_patterns(run: Run) -> HeadPatterns | None:
    """The patterns of the first finding that keeps them."""
    return next((finding.patterns for finding in run.findings.values() if finding.patterns is not None), None)


def search_json(run: Run, anchors: Mapping[str, str]) -> list[dict[str, str]]:
    """What a search can find besides heads and quantities: lenses by name, title and question."""
    return [
        {"lens": name, "title": finding.about.title, "question": finding.about.question, "anchor": anchors[name]}
        for name, finding in run.findings.items()
    ]
