"""Draws a flow: boxes in columns, and bands between them as wide as their numbers."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path

from headscope.core import Flow
from headscope.core.figure import Array
from headscope.report.colours import Theme
from headscope.report.draw.canvas import lettering, panel
from headscope.report.draw.mosaic import kind_colours
from headscope.report.flow_layout import LINE, FlowLayout, flow_layout

_WIDTH, _POINT, _GLYPH = 700.0, 0.65, 6.6  # pixels across; points for a pixel; pixels of a letter
_HEADING = 12.0


def draw(figure: Flow, theme: Theme) -> Figure:
    """Draw the flow on a matplotlib figure, column 0 on the left."""
    layout = flow_layout(figure)
    canvas, axes = panel(_WIDTH * _POINT, (layout.height + 2 * _HEADING) * _POINT)
    lefts, widths = _across(figure)
    colours = kind_colours(len(figure.kinds), theme, ordered=False)
    for band in range(len(figure.bands)):
        source, target, kind = figure.bands[band, :3].astype(int)
        outline = _band(layout, band, lefts[source] + widths[source], lefts[target])
        is_negative = figure.bands[band, 3] < 0
        axes.add_patch(
            PathPatch(outline, facecolor="none" if is_negative else colours[kind - 1], alpha=0.75,
                      edgecolor=colours[kind - 1], linewidth=0.8 if is_negative else 0, linestyle="--")
        )  # fmt: skip
    for box in range(len(figure.boxes)):
        _draw_box(axes, figure, layout, box, (lefts[box], widths[box]), theme)
    for column, heading in enumerate(figure.headings):
        centre = (lefts + widths / 2)[figure.columns == column]
        if len(centre):
            axes.text(centre[0], -_HEADING, **lettering(heading, "s"), ha="center", color=theme.muted, fontsize=6.5)
    axes.set_xlim(-1, _WIDTH + 1)
    axes.set_ylim(layout.height + 1, -2 * _HEADING)
    axes.set_axis_off()
    return canvas


def _across(figure: Flow) -> tuple[Array, Array]:
    """Left end and width of each box: a column is as wide as its longest line, and the gaps are equal."""
    n_columns = len(figure.headings)
    needed = np.full(n_columns, 40.0)
    for box, column in enumerate(figure.columns.astype(int)):
        longest = max(len(line) for line in (figure.boxes[box], *figure.notes[box]))
        needed[column] = max(needed[column], min(_GLYPH * longest + 16, 0.8 * _WIDTH / n_columns))
    gap = (_WIDTH - needed.sum()) / max(n_columns - 1, 1)
    lefts = np.concatenate([[0.0], np.cumsum(needed + gap)[:-1]])
    columns = figure.columns.astype(int)
    return lefts[columns], needed[columns]


def _band(layout: FlowLayout, band: int, left: float, right: float) -> Path:
    start, end, width = layout.starts[band], layout.ends[band], layout.widths[band]
    centre = (left + right) / 2
    corners = [
        (left, start), (centre, start), (centre, end), (right, end),
        (right, end + width), (centre, end + width), (centre, start + width), (left, start + width), (left, start),
    ]  # fmt: skip
    curve = [Path.CURVE4] * 3
    return Path(corners, [Path.MOVETO, *curve, Path.LINETO, *curve, Path.CLOSEPOLY])


def _draw_box(
    axes: Axes, figure: Flow, layout: FlowLayout, box: int, across: tuple[float, float], theme: Theme
) -> None:
    (left, width), top, height = across, layout.tops[box], layout.heights[box]
    axes.add_patch(
        Rectangle((left, top), width, height, facecolor=theme.grid, edgecolor=theme.muted, linewidth=0.5, alpha=0.6)
    )
    lines = (figure.boxes[box], *figure.notes[box])
    first = top + height / 2 - LINE * (len(lines) - 1) / 2
    for number, line in enumerate(lines):
        axes.text(left + width / 2, first + LINE * number, **lettering(line, "s"), ha="center", va="center",
                  color=theme.ink, fontsize=6.5, fontweight="normal" if number else "bold")  # fmt: skip
