"""The size of each figure on the page, in pixels, so that its place is reserved before the script draws it.

Lengths of words are estimates: the script measures them and fits the drawing into the reserved place.
"""

from collections.abc import Iterable, Sequence

from headscope.core import Curves, Figure, Flow, HeatMap, Histogram, Mosaic, Network
from headscope.report.flow_layout import flow_layout

HALF = 380  # the width of a figure that shares its row with another
_WIDEST, _TALLEST = 760, 900
_FLOW_HEADING = 32  # the line above the columns of a flow, and the lower edge
_PLOT = 246  # height of a panel of curves with its axes
_LEGEND_LINE, _MARK_LINE = 18, 14
_GLYPH, _HANDLE = 6.2, 38.0  # a character of a name, and the line and space before it
_BAR = 84  # a colour bar with its labels
_AXES = 46  # the names of an axis and of its ticks
_MOST_IN_LEGEND = 6  # measured curves; more are named along a strip of their colours


def figure_size(figure: Figure) -> tuple[int, int]:
    """Width and height of a figure."""
    match figure:
        case Curves():
            return HALF, _PLOT + _legend_height(_named_curves(figure))
        case Histogram():
            names = [law.label for law in figure.laws]
            return HALF, _PLOT - 8 + _legend_height(names) + _MARK_LINE * min(len(figure.marks), 2)
        case HeatMap():
            return _map_size(figure)
        case Mosaic():
            rows, columns = figure.values.shape
            side = HALF - _AXES - 14
            return HALF, min(_TALLEST, round(side * rows / max(columns, 1)) + _AXES + _legend_height(figure.kinds))
        case Network():
            return HALF, HALF - 20 + _legend_height(figure.kinds)
        case Flow():
            return _WIDEST, max(100, min(_TALLEST, round(flow_layout(figure).height + _FLOW_HEADING)))


def _named_curves(figure: Curves) -> list[str]:
    measured = [curve for curve in figure.series if curve.role == "measured"]
    if len(figure.series) == 1 and measured:
        return []
    in_order = len(measured) > _MOST_IN_LEGEND
    return list(dict.fromkeys(curve.label for curve in figure.series if not (in_order and curve.role == "measured")))


def _legend_height(names: Iterable[str]) -> int:
    """The height of a legend whose names follow each other line by line."""
    lines, end = 0, float("inf")
    for name in names:
        width = _HANDLE + min(len(name), 40) * _GLYPH
        if end + width > HALF:
            lines, end = lines + 1, 0.0
        end += width
    return lines * _LEGEND_LINE


def _map_size(figure: HeatMap) -> tuple[int, int]:
    rows, columns = (max(n, 1) for n in (len(figure.row_labels), len(figure.column_labels)))
    if figure.panels is not None:
        left, below = _side(figure.panels[0]), float(_AXES)
        side = min((_WIDEST - _BAR - left) / columns, (_TALLEST - _AXES) / rows, 11.0)
        width, height = side, side
    else:
        width, height = _cell_size(rows, columns)
        left = _side(figure.row_labels)
        below = 26 + (_long(figure.column_labels) if _is_upright(figure.column_labels, width) else 16)
    across, down = left + columns * width + _BAR, rows * height + below
    return max(240, min(_WIDEST, round(across))), max(130, min(_TALLEST, round(down)))


def _cell_size(rows: int, columns: int) -> tuple[float, float]:
    """Width and height of a cell: roomy for few, small for many."""
    width = min(max(250 / columns, 13.0), 34.0, 630 / columns) if columns > 1 else 57.0
    height = min(max(325 / rows, 13.0), 22.0, 800 / rows) if rows > 1 else 40.0
    return width, height


def _side(labels: Sequence[str]) -> float:
    """The room for the labels of rows and the name of their axis."""
    return 26 + _long(labels)


def _long(labels: Sequence[str]) -> float:
    return _GLYPH * min(24, max((len(label) for label in labels), default=1)) + 6


def _is_upright(labels: Sequence[str], width: float) -> bool:
    return max((len(label) for label in labels), default=1) > 3 and _long(labels) > width
