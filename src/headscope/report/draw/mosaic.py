"""Draws a map of kinds: one coloured cell per pair, and a legend."""

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from headscope.core import Mosaic
from headscope.report.colours import Theme
from headscope.report.draw.canvas import lettering, name_axes, panel

_SIDE = 232.0
_GRID_UP_TO = 64  # cells a side; with more the lines would hide them


def draw(figure: Mosaic, theme: Theme) -> Figure:
    """Draw the map on a matplotlib figure, first query on top."""
    rows, columns = figure.values.shape
    canvas, axes = panel(_SIDE, _SIDE * rows / columns)
    colours = kind_colours(len(figure.kinds), theme, figure.ordered)
    lines = max(rows, columns) <= _GRID_UP_TO
    for kind, colour in enumerate(colours, start=1):
        runs = _runs(figure.values == kind, 1 if lines else columns)
        axes.add_collection(PolyCollection(runs, facecolors=colour, edgecolors=theme.grid if lines else colour,
                                           linewidths=0.4 if lines else 0.1))  # fmt: skip
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.patch.set_visible(False)
    name_axes(axes, figure.column_axis, figure.row_axis)
    axes.tick_params(colors=theme.muted, labelcolor=theme.ink, width=0.7, length=2.5)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(theme.ink)
    for spine in axes.spines.values():
        spine.set_edgecolor(theme.muted)
    kind_legend(canvas, figure.kinds, colours, theme)
    return canvas


def _runs(where: NDArray[np.bool_], longest: int) -> list[list[tuple[float, float]]]:
    """Rectangles that cover the true cells: runs of at most `longest` cells per row."""
    rectangles = []
    for row, cells in enumerate(where):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], cells.astype(int), [0]])))
        for start, stop in edges.reshape(-1, 2):
            for left in range(start, stop, longest):
                x, end = left - 0.5, min(left + longest, stop) - 0.5
                rectangles.append([(x, row - 0.5), (end, row - 0.5), (end, row + 0.5), (x, row + 0.5)])
    return rectangles


def kind_colours(count: int, theme: Theme, ordered: bool) -> tuple[str, ...]:
    """One colour per kind: distinct ones, or evenly along a scale, dark first."""
    if not ordered:
        return tuple(theme.series[i % len(theme.series)] for i in range(count))
    last = len(theme.heat) - 1
    return tuple(theme.heat[round(last * (0.12 + 0.8 * i / max(count - 1, 1)))] for i in range(count))


def kind_legend(canvas: Figure, kinds: tuple[str, ...], colours: tuple[str, ...], theme: Theme) -> None:
    """Write the names of the kinds to the right of the panel."""
    handles = [Patch(facecolor=colour, label=lettering(kind, "label")["label"])
               for kind, colour in zip(kinds, colours, strict=True)]  # fmt: skip
    box = canvas.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False, handlelength=1.0,
                        handleheight=1.0, borderaxespad=0)  # fmt: skip
    for text in box.get_texts():
        text.set_color(theme.ink)
