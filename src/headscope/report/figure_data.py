"""Figures as JSON: what the script of a page draws them from (`frontend/src/data.ts` has the same contract).

Numbers have five significant digits; whole numbers have all of theirs. NaN is null, an infinite number is ±1e999,
which JSON allows and every reader takes for infinity.
"""

import base64
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from headscope.core import Figure, HeatMap, Mosaic, Series
from headscope.core.figure import Array
from headscope.report.figure_size import figure_size

_FIELDS_OF_THE_PAGE = ("caption",)  # these are in the page itself
_PACKED_FROM = 2048  # cells; a smaller map stays readable
_CODES = 0xFFFE  # steps between the smallest and the largest value of a packed map
_MISSING = 0xFFFF
_FIRST_KIND = ord("0")
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&"}  # json itself escapes everything beyond ASCII


def figure_json(figure: Figure) -> str:
    """The figure as JSON that is safe inside a `<script>` element."""
    width, height = figure_size(figure)
    entries = {"type": type(figure).__name__, "width": width, "height": height}
    entries |= {
        field.name: getattr(figure, field.name) for field in fields(figure) if field.name not in _FIELDS_OF_THE_PAGE
    }
    text = {key: _text(value) for key, value in entries.items()}
    if isinstance(figure, HeatMap):
        text["values"] = _map_text(figure.values)
    if isinstance(figure, Mosaic):
        text["values"] = _text(_kind_rows(figure.values, len(figure.kinds)))
    return _object_text(text).translate(_ESCAPES)


def _text(value: Any) -> str:
    """Any value of a figure as JSON."""
    match value:
        case np.ndarray():
            return _list_text(map(_text, value) if value.ndim > 1 else map(_number_text, value.tolist()))
        case tuple() if value and all(isinstance(entry, Series) for entry in value):
            return _series_text(value)
        case tuple() | list():
            return _list_text(map(_text, value))
        case float():
            return _number_text(value)
        case _:
            return json.dumps(value)


def _number_text(value: float) -> str:
    if math.isfinite(value):
        return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{value:.5g}"
    return "null" if math.isnan(value) else "1e999" if value > 0 else "-1e999"


def _series_text(series: Sequence[Series]) -> str:
    """The curves; one whose places are those of an earlier curve names that curve instead."""
    owners: dict[bytes, int] = {}
    curves = []
    for index, curve in enumerate(series):
        owner = owners.setdefault(curve.x.tobytes(), index)
        text = {field.name: _text(getattr(curve, field.name)) for field in fields(curve)}
        curves.append(_object_text(text if owner == index else text | {"x": str(owner)}))
    return _list_text(curves)


def _map_text(values: Array) -> str:
    """The rows of a map; a large map as 16-bit codes between its smallest and its largest value."""
    if values.size < _PACKED_FROM or np.isinf(values).any() or np.isnan(values).all():
        return _text(values)
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    share = (values - low) / (high - low) if high > low else np.zeros_like(values)
    codes = np.where(np.isnan(share), _MISSING, np.round(np.nan_to_num(share) * _CODES)).astype("<u2")
    packed = {"rows": values.shape[0], "columns": values.shape[1], "low": low, "high": high}
    text = {key: json.dumps(value) for key, value in packed.items()}
    return _object_text(text | {"codes": json.dumps(base64.b64encode(codes.tobytes()).decode())})


def _kind_rows(values: Array, n_kinds: int) -> list[str]:
    """One character for each cell: `0` for an empty cell, then `1`, `2` and on for the kinds."""
    is_kind = (values >= 1) & (values <= n_kinds) & (values == np.round(values))
    kinds = np.where(is_kind, np.nan_to_num(values), 0).astype(int)
    return ["".join(chr(_FIRST_KIND + kind) for kind in row) for row in kinds.tolist()]


def _object_text(entries: dict[str, str]) -> str:
    return "{" + ",".join(f"{json.dumps(key)}:{text}" for key, text in entries.items()) + "}"


def _list_text(texts: Iterable[str]) -> str:
    return f"[{','.join(texts)}]"
