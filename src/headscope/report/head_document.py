"""Chosen heads as one self-contained page: the page of a head as the report has it, without a report."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headscope.core import HeadQuantity, HeadView, HeadViews
from headscope.core.head_patterns import LARGEST_LEVEL
from headscope.core.html_text import escape
from headscope.core.numbers import counted, number, visible
from headscope.report.head_grid import Head, HeadColumn, HeadGrid, panels_of
from headscope.report.page import document
from headscope.report.page_data import data_script, grid_json

EXACT_TOKENS = 1024  # up to here the page holds every weight as it was computed; beyond it one byte for each
_LENS = "focus"


def render_heads(views: HeadViews) -> str:
    """The page; it needs no network, and the same heads give the same bytes.

    Without a script it has the numbers and the largest weights.
    """
    grid = _grid(views)
    data = [
        data_script("atlas", grid_json(views[0].model, grid)),
        data_script("patterns", _patterns_json(views, grid)),
    ]
    note = escape(_note(views))
    sections = "".join(_plain(view) for view in views)
    footer = "<footer><p>Made by headscope. This page is self-contained: it asks nothing of the network.</p></footer>"
    body = f'<section id="head-page" tabindex="-1" data-note="{note}">{sections}</section>\n{footer}{"".join(data)}'
    return document(views.title, body)


def _note(views: HeadViews) -> str:
    """What the maps are of."""
    n_tokens = len(views[0].tokens)
    rounded = "" if n_tokens <= EXACT_TOKENS else ". Weights are rounded: a byte holds the root of each"
    return f"On {counted(n_tokens, 'token')} of {views[0].text}{rounded}."


def _grid(views: HeadViews) -> HeadGrid:
    """The chosen heads and their numbers, as the report has those of all heads."""
    sites = tuple(dict.fromkeys(view.site for view in views))
    panels, places = panels_of(sites)
    heads = tuple(
        Head(view.label, view.site, view.head, places.index((view.site.stack, view.site.kind))) for view in views
    )
    return HeadGrid(panels, heads, tuple(_columns(views)))


def _columns(views: HeadViews) -> list[HeadColumn]:
    entries = {entry.key: entry for view in views for entry in view.numbers}
    return [
        HeadColumn(
            _LENS,
            "Numbers",
            "",
            HeadQuantity(key, entry.label, "heads", unit=entry.unit),
            _array(view.quantities.get(key) for view in views),
            _array(view.nulls.get(key) for view in views),
        )
        for key, entry in entries.items()
    ]


def _array(values: Any) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _patterns_json(views: HeadViews, grid: HeadGrid) -> dict[str, Any]:
    """The maps of the heads, exact or in bytes; in causal attention a row holds its own place and those before it."""
    first_views = {head.panel: view for head, view in reversed(list(zip(grid.heads, views, strict=True)))}
    is_exact = len(views[0].tokens) <= EXACT_TOKENS
    packed = [
        _packed(view, causal=grid.panels[head.panel].causal, exact=is_exact)
        for head, view in zip(grid.heads, views, strict=True)
    ]
    return {
        "size": len(views[0].tokens),
        "tokens": [_tokens_json(first_views[panel]) for panel in range(len(grid.panels))],
        "largest": [float(view.pattern.max()) for view in views],
        "maps": [None] * len(views) if is_exact else packed,
        "weights": packed if is_exact else [None] * len(views),
        "cards": {},
    }


def _tokens_json(view: HeadView) -> dict[str, Any]:
    sizes = {"n_queries": len(view.tokens), "n_keys": len(view.key_tokens)}
    return {"queries": view.tokens, "keys": view.key_tokens} | sizes


def _packed(view: HeadView, *, causal: bool, exact: bool) -> str:
    """The weights in base64: as float32, or one byte for each root of a share of the largest."""
    weights = view.pattern.double().numpy()
    if causal:
        weights = weights[np.tril(np.ones(weights.shape, dtype=bool))]
    if exact:
        return base64.b64encode(weights.astype("<f4").tobytes()).decode()
    levels = np.rint(LARGEST_LEVEL * np.sqrt(weights / (weights.max() or 1.0)))
    return base64.b64encode(levels.astype(np.uint8).tobytes()).decode()


def _plain(view: HeadView) -> str:
    """A head without a script: its numbers and its largest weights."""
    rows = "".join(
        f'<tr><th scope="row">{escape(entry.label)}</th><td class="n">{escape(entry.text)}</td>'
        f'<td class="n quiet">{escape(entry.null_text)}</td></tr>'
        for entry in view.numbers
        if entry.value is not None
    )
    titles = "".join(f'<th scope="col">{title}</th>' for title in ("Quantity", "Value", "Uniform attention"))
    items = "".join(f"<li>{item}</li>" for item in _largest(view))
    return (
        f"<h1>{escape(view.label)} <small>of {escape(view.model)}</small></h1>"
        '<p class="quiet">The map is drawn where scripts are allowed.</p>'
        f'<div class="scroll"><table class="head-numbers"><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table>'
        f"</div><h2>Largest weights, without those on the first token</h2><ul>{items}</ul>"
    )


def _largest(view: HeadView) -> Sequence[str]:
    return [
        f"{escape(visible(weight.query_token))} → {escape(visible(weight.key_token))} {number(weight.weight)}"
        for weight in view.largest()
    ]
