"""The patterns of heads as one figure: a map with its tokens, or a grid of maps."""

import numpy as np

from headscope.core import HeadView, HeadViews, HeatMap
from headscope.core.figure import Array
from headscope.core.numbers import number

_ACROSS = 4  # maps in a line that are named one by one
_MOST_ACROSS = 12  # columns of a grid of layers and heads
_TOP = 0.98  # weights above this quantile share one colour
_NOTE = "Queries: down; keys: across."


def head_figure(views: HeadViews) -> HeatMap:
    """One map with the tokens along both sides; of several heads a grid of maps with their labels."""
    return _single(views[0]) if len(views) == 1 else _grid(views)


def _single(view: HeadView) -> HeatMap:
    values = _cells(view)
    limits = _limits(values)
    return HeatMap(
        name=view.label,
        title=view.title,
        caption=f"{_NOTE} {_colour_note(limits[1])}",
        values=values,
        row_labels=_labels(view.tokens),
        column_labels=_labels(view.key_tokens),
        row_axis="query",
        column_axis="key",
        unit="weight",
        limits=limits,
    )


def _grid(views: HeadViews) -> HeatMap:
    """The maps in a grid of layers and heads where these name them, else line by line."""
    size = len(views[0].tokens)
    places, left, above = _arrangement(views)
    cells: Array = np.full((len(left) * (size + 1) - 1, len(above) * (size + 1) - 1), np.nan)
    for view, (down, right) in zip(views, places, strict=True):
        cells[down * (size + 1) :][:size, right * (size + 1) :][:, :size] = _cells(view)
    limits = _limits(cells)
    numbers = [str(place) for place in range(size)]
    return HeatMap(
        name="heads",
        title=views.title,
        caption=f"{_NOTE} One scale for all. {_colour_note(limits[1])}",
        values=cells,
        row_labels=_repeated(numbers, len(left)),
        column_labels=_repeated(numbers, len(above)),
        row_axis="query",
        column_axis="key",
        unit="weight",
        limits=limits,
        panels=(left, above),
    )


def _arrangement(views: HeadViews) -> tuple[list[tuple[int, int]], tuple[str, ...], tuple[str, ...]]:
    """The row and column of each map, and the names of rows and columns."""
    if len(views) <= _ACROSS:
        return [(0, place) for place in range(len(views))], ("",), tuple(view.label for view in views)
    sites = list(dict.fromkeys(view.site for view in views))
    heads = sorted({view.head for view in views})
    if len(heads) <= _MOST_ACROSS and 2 * len(views) >= len(sites) * len(heads):
        places = [(sites.index(view.site), heads.index(view.head)) for view in views]
        return places, tuple(site.label for site in sites), tuple(f"H{head}" for head in heads)
    lines = [views.views[start : start + _ACROSS] for start in range(0, len(views), _ACROSS)]
    left = tuple(", ".join(view.label for view in line) for line in lines)
    return [divmod(place, _ACROSS) for place in range(len(views))], left, ("",) * _ACROSS


def _cells(view: HeadView) -> Array:
    """The weights; what a query cannot see stays empty."""
    cells: Array = view.pattern.double().numpy().copy()
    if view.is_causal:
        cells[np.triu_indices(cells.shape[0], 1, cells.shape[1])] = np.nan
    return cells


def _limits(values: Array) -> tuple[float, float]:
    """A scale that separates small weights."""
    return 0.0, max(float(np.nanquantile(values, _TOP)), 1e-6)


def _colour_note(high: float) -> str:
    return f"Weights above {number(high)} have one colour."


def _labels(tokens: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{place} {token.strip() or repr(token)}" for place, token in enumerate(tokens))


def _repeated(labels: list[str], count: int) -> tuple[str, ...]:
    """The labels of several maps in a row, with an empty one between them."""
    return tuple([label for _ in range(count) for label in (*labels, "")][:-1])
