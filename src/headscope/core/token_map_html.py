"""Draws a map of tokens as HTML: one cell per pair, tokens along both sides, no script.

Positive values have one hue, negative ones another; it covers the background of the notebook as strongly as the value
says. So a light and a dark notebook show the same picture.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headscope.core.html_text import escape
from headscope.core.numbers import number, visible

MOST_TOKENS = 96  # of each side; more are cropped
ALL_LABELS = 64  # up to here every token has its label
_LABEL = 16  # characters of a label
_LEGEND = (0.0, 0.05, 0.25, 0.5, 1.0)  # shares of the largest value that the legend shows

Side = Sequence[tuple[int, str]]  # place and token

_STYLE = """
.hs-map{font-size:13px;line-height:1.35;margin:.2em 0;overflow-x:auto}
.hs-map p{margin:0 0 5px}
.hs-map .hs-plot{display:grid;grid-template-columns:max-content max-content;width:max-content}
.hs-map b{font:var(--hs-label) ui-monospace,Menlo,Consolas,"Liberation Mono",monospace;white-space:pre;
unicode-bidi:isolate}
.hs-map .hs-top{grid-column:2;display:flex;align-items:flex-end;padding:0 0 4px 1px}
.hs-map .hs-top b{flex:0 0 var(--hs-cell);width:var(--hs-cell);line-height:var(--hs-cell);writing-mode:vertical-rl;
text-orientation:sideways;transform:rotate(180deg)}
.hs-map .hs-side{padding:1px 5px 0 0;text-align:right}
.hs-map .hs-side b{display:block;height:var(--hs-cell);line-height:var(--hs-cell)}
.hs-map .hs-cells{display:grid;grid-auto-rows:var(--hs-cell);background:rgba(128,128,128,.09);
border:1px solid rgba(128,128,128,.4)}
.hs-map i{background:#e8620e;cursor:crosshair;-webkit-print-color-adjust:exact;print-color-adjust:exact}
.hs-map i.n{background:#2f7fc1}
.hs-map i.x{background:repeating-linear-gradient(45deg,rgba(128,128,128,.7) 0 1px,transparent 1px 4px)}
.hs-map i.z{background:none}
.hs-map .hs-legend{display:flex;align-items:center;gap:5px;margin-top:7px;padding-left:2px}
.hs-map .hs-legend span{display:inline-block;margin-right:8px}
.hs-map .hs-legend i{display:inline-block;width:13px;height:13px;outline:1px solid rgba(128,128,128,.4)}
""".replace("\n", "")


def token_map_html(values: NDArray[Any], queries: Side, keys: Side, title: str) -> str:
    """The map as one self-contained piece of HTML; hovering over a cell gives query, key and value."""
    cells, rows, columns = values[:MOST_TOKENS, :MOST_TOKENS], queries[:MOST_TOKENS], keys[:MOST_TOKENS]
    finite = np.abs(cells[np.isfinite(cells)])
    top = float(finite.max()) if finite.size else 0.0
    heading = f"<p><strong>{escape(title)}</strong></p>" if title else ""
    size = f"<p>{len(queries)} queries (rows) × {len(keys)} keys (columns)</p>"
    body = _plot(cells, rows, columns, top) if cells.size else "<p>There is nothing to draw.</p>"
    return (
        f'<div class="hs-map" role="figure" aria-label="{escape(title or "map of tokens")}"><style>{_STYLE}</style>'
        f"{heading}{size}{_crop_note(queries, keys)}{body}</div>"
    )


def _crop_note(queries: Side, keys: Side) -> str:
    cropped = {name: len(side) for name, side in (("queries", queries), ("keys", keys)) if len(side) > MOST_TOKENS}
    if not cropped:
        return ""
    parts = " and ".join(f"the first {MOST_TOKENS} of {size} {name}" for name, size in cropped.items())
    last = ", ".join(f"{name}=range({size - MOST_TOKENS}, {size})" for name, size in cropped.items())
    return f"<p>Drawn are {parts}; <code>.part({last})</code> gives the last ones.</p>"


def _plot(values: NDArray[Any], queries: Side, keys: Side, top: float) -> str:
    cell = _cell_size(max(values.shape))
    label = f"{min(12, max(cell, 9))}px/1"
    return (
        f'<div class="hs-plot" style="--hs-cell:{cell}px;--hs-label:{label}">'
        f'<div class="hs-top">{_labels(keys)}</div><div class="hs-side">{_labels(queries)}</div>'
        f'<div class="hs-cells" style="grid-template-columns:repeat({len(keys)},{cell}px)">'
        f"{_cells(values, queries, keys, top)}</div></div>{_legend(values, top)}"
    )


def _cell_size(tokens: int) -> int:
    """The side of a cell in pixels: roomy for few tokens, small for many."""
    return next((size for most, size in ((12, 26), (24, 20), (40, 15), (ALL_LABELS, 12)) if tokens <= most), 8)


def _labels(side: Side) -> str:
    step = 1 if len(side) <= ALL_LABELS else 2
    return "".join(f"<b>{escape(_label(token)) if i % step == 0 else ''}</b>" for i, (_, token) in enumerate(side))


def _label(token: str) -> str:
    """A token for a label: without blanks around it, unless it has nothing else, and short."""
    text = token.strip() or token.replace(" ", "\u2423") or "\u2205"
    return visible(text if len(text) <= _LABEL else f"{text[: _LABEL - 1]}…")


def _cells(values: NDArray[Any], queries: Side, keys: Side, top: float) -> str:
    columns = [f"key {place} “{escape(visible(token))}”" for place, token in keys]
    parts = []
    for (place, token), row in zip(queries, values.tolist(), strict=True):
        query = f"query {place} “{escape(visible(token))}”"
        parts += [
            f'<i{_look(value, top)} title="{query}, {key}: {number(value)}"></i>'
            for key, value in zip(columns, row, strict=True)
        ]
    return "".join(parts)


def _look(value: float, top: float) -> str:
    """Class and opacity of a cell: the share of the largest value, square-rooted so that small values are seen."""
    if np.isnan(value):
        return ' class="x"'
    share = 0.0 if not top else min(abs(value) / top, 1.0)
    if not round(share**0.5, 2) or value == -np.inf:  # masked scores are −∞
        return ' class="z"'
    sign = ' class="n"' if value < 0 else ""
    return f'{sign} style="opacity:{share**0.5:.2f}"'


def _legend(values: NDArray[Any], top: float) -> str:
    shares = [share for share in _LEGEND if top or not share]
    finite = values[np.isfinite(values)]
    positive = [share * top for share in shares] if not finite.size or finite.max() >= 0 else []
    negative = [-share * top for share in reversed(shares) if share] if finite.size and finite.min() < 0 else []
    swatches = [f"<i{_look(value, top)}></i><span>{_short_number(value)}</span>" for value in (*negative, *positive)]
    if np.isnan(values).any():
        swatches.append('<i class="x"></i><span>NaN</span>')
    return f'<div class="hs-legend">{"".join(swatches)}</div>'


def _short_number(value: float) -> str:
    text = number(value)
    return text.rstrip("0").rstrip(".") if "." in text and "×" not in text else text
