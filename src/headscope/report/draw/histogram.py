"""Draws a histogram with its predicted laws and the positions that theory marks."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headscope.core import Histogram
from headscope.errors import UsageError
from headscope.report.colours import Theme
from headscope.report.draw.canvas import dress, lettering, log_axis, name_axes, panel
from headscope.report.draw.curves import SERIES, colours_of, draw_series, legend

_SIZE = (232.0, 140.0)
_ROW = 10.0  # height of a row of names of marks, in points
_GLYPH = 4.6  # mean width of their characters


def draw(figure: Histogram, theme: Theme) -> Figure:
    """Draw the histogram on a matplotlib figure."""
    if not np.isfinite(figure.density).any():
        raise UsageError(f"the histogram {figure.name!r} has no finite bar")
    canvas, axes = panel(*_SIZE)
    dress(axes, theme)
    low, high = _heights(figure)
    # An empty bar ends at the start of the axis: on a logarithmic one 0 would break the outline.
    bars = axes.stairs(np.maximum(np.nan_to_num(figure.density), low), figure.edges, baseline=low, fill=True)
    bars.set(color=theme.series[0], alpha=0.45, linewidth=0)
    for index, (law, colour) in enumerate(zip(figure.laws, colours_of(figure.laws, theme), strict=True)):
        draw_series(axes, law, colour, f"{SERIES}{index}")
    axes.set_ylim(low, high)
    if figure.log_y:
        log_axis(axes, "y")
    name_axes(axes, figure.x_axis, "density")
    rows = _marks(axes, figure, theme)
    legend(axes, figure.laws, theme)
    if (box := axes.get_legend()) is not None:
        box.set_bbox_to_anchor((0, 1 + rows * _ROW / _SIZE[1]))
    return canvas


def _heights(figure: Histogram) -> tuple[float, float | None]:
    """The limits of the vertical axis; None lets the curves decide."""
    if not figure.log_y:
        return 0.0, None
    positive = figure.density[figure.density > 0]
    if not positive.size:
        raise UsageError(f"the histogram {figure.name!r} has no positive bar to draw on a logarithmic axis")
    return float(positive.min()) / 2, float(positive.max()) * 2


def _marks(axes: Axes, figure: Histogram, theme: Theme) -> int:
    """Mark positions and name them above the panel, in rows without overlaps.

    Returns the number of rows.
    """
    marks = sorted((mark for mark in figure.marks if np.isfinite(mark[1])), key=lambda mark: mark[1])
    positions = [position for _, position in marks]
    low, high = axes.get_xlim()
    low, high = min([low, *positions]), max([high, *positions])
    axes.set_xlim(low, high)
    ends: list[float] = []  # where the last name of each row ends, in points
    for label, position in marks:
        axes.axvline(position, color=theme.ink, linewidth=0.8, linestyle=(0, (1, 1.2)))
        half = len(label) * _GLYPH / 2 + 3
        centre = (position - low) / (high - low) * _SIZE[0]
        row = next((i for i, end in enumerate(ends) if centre - half > end), len(ends))
        ends[row : row + 1] = [centre + half]
        axes.annotate(
            **lettering(label, "text"), xy=(position, 1), xycoords=("data", "axes fraction"),
            xytext=(0, 4 + row * _ROW), textcoords="offset points", ha="center", fontsize=7.5, color=theme.ink,
        )  # fmt: skip
    return len(ends)
