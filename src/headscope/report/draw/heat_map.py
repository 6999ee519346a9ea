"""Draws a heat map: one cell per number, colours that diverge from the reference."""

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, Colormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, MaxNLocator, ScalarFormatter

from headscope.core import HeatMap
from headscope.core.figure import Array
from headscope.core.numbers import number, visible
from headscope.report.colours import LEVELS, Theme
from headscope.report.draw.canvas import add_axes, lettering, name_axes, panel
from headscope.report.draw.palette import diverging_map, sequential_map

CELLS, BAR = "cells", "bar"
FRAME = "frame-of-"  # the panel's outline, which shows the extent of the cells even if some are empty
_GLYPH = 4.4  # mean width of a tick label's character, in points


@dataclass(frozen=True)
class Scale:
    """The colour level of each value.

    The colour bar shows the levels between `low` and `high`.
    """

    bounds: Array
    low: float
    high: float
    diverging: bool

    def level(self, value: float) -> int:
        """The index of the colour of `value`."""
        return int(np.clip(np.searchsorted(self.bounds, value, side="right") - 1, 0, LEVELS - 1))

    @property
    def levels_shown(self) -> range:
        """The levels between `low` and `high`."""
        return range(self.level(self.low), self.level(np.nextafter(self.high, self.low)) + 1)


def scale_of(figure: HeatMap) -> Scale | None:
    """The colour scale of a heat map; None where no value is finite."""
    finite = figure.values[np.isfinite(figure.values)]
    if not finite.size:
        return None
    low, high = figure.limits or (float(finite.min()), float(finite.max()))
    if high <= low:
        room = abs(low) * 1e-3 or 1e-3
        low, high = low - room, high + room
    if figure.reference is None:
        return Scale(np.linspace(low, high, LEVELS + 1), low, high, diverging=False)
    # Equal steps of colour mean equal steps of value on both sides of the reference.
    reference = figure.reference
    low, high = min(low, reference), max(high, reference)
    reach = max(high - reference, reference - low)
    return Scale(np.linspace(reference - reach, reference + reach, LEVELS + 1), low, high, diverging=True)


def draw(figure: HeatMap, theme: Theme, *, cells: bool = True) -> Figure:
    """Draw the heat map on a matplotlib figure.

    Without `cells` only their place is marked, for a caller that draws them.
    """
    rows, columns = figure.values.shape
    width, height = cell_size(rows, columns) if figure.panels is None else _square(rows, columns)
    canvas, axes = panel(width * columns, height * rows)
    scale = scale_of(figure)
    if scale is None:
        axes.text(columns / 2, rows / 2, "no value", ha="center", va="center", color=theme.muted)
    else:
        colours = diverging_map(theme) if scale.diverging else sequential_map(theme)
        if cells:
            _mesh(axes, figure.values, scale, colours, CELLS)
        else:
            _mark(axes, CELLS)
        _colour_bar(canvas, figure, scale, theme, colours if cells else None)
    axes.set_xlim(0, columns)
    axes.set_ylim(rows, 0)
    _label(axes, figure, (width, height), theme)
    return canvas


def cell_size(rows: int, columns: int) -> tuple[float, float]:
    """Width and height of a cell in points: roomy for few, small for many."""
    width = min(max(198 / columns, 9.5), 26.0, 480 / columns) if columns > 1 else 44.0
    height = min(max(250 / rows, 9.5), 17.0, 700 / rows) if rows > 1 else 30.0
    return width, height


def _square(rows: int, columns: int) -> tuple[float, float]:
    """The size of square cells such that a row of maps fits the page."""
    side = min(500 / columns, 640 / rows, 8.0)
    return side, side


def cell_name(figure: HeatMap, row: int, column: int) -> str:
    """The name of a cell: `L3.H7` for layers and heads, else both axes by name."""
    first, second = visible(figure.row_labels[row]), visible(figure.column_labels[column])
    if (figure.row_axis, figure.column_axis) == ("layer", "head"):
        return f"{'L' if first.isdigit() else ''}{first}.{'H' if second.isdigit() else ''}{second}"
    return f"{figure.row_axis} {first}, {figure.column_axis} {second}"


def _frame(axes: Axes, gid: str) -> None:
    """Make the background transparent but part of the drawing."""
    axes.patch.set_facecolor("none")
    axes.patch.set_gid(FRAME + gid)


def _mesh(axes: Axes, values: Array, scale: Scale, colours: Colormap, gid: str) -> None:
    rows, columns = values.shape
    masked = np.ma.masked_invalid(values)
    mesh = axes.pcolormesh(
        np.arange(columns + 1), np.arange(rows + 1), masked.clip(scale.bounds[0], scale.bounds[-1]),
        cmap=colours, norm=BoundaryNorm(scale.bounds, LEVELS), edgecolors="face", linewidth=0.15,
    )  # fmt: skip
    mesh.set_gid(gid)


def _mark(axes: Axes, gid: str) -> None:
    """Draw an empty shape where the cells belong, as a mark for drawing them later."""
    axes.add_patch(Rectangle((0, 0), 1, 1, fill=False, linewidth=0, gid=gid))


def _colour_bar(canvas: Figure, figure: HeatMap, scale: Scale, theme: Theme, colours: Colormap | None) -> None:
    width, height = canvas.get_size_inches() * 72
    tall = min(max(height, 60.0), 140.0)
    gap = 9.0 if figure.reference is None else 24.0  # room for the label of the line
    bar = add_axes(canvas, (width + gap, (height - tall) / 2 if tall > height else height - tall, 7.0, tall))
    levels = scale.levels_shown
    edges = scale.bounds[levels.start : levels.stop + 1]
    middles = (edges[1:] + edges[:-1]) / 2
    if colours is None:
        _mark(bar, BAR)
    else:
        norm = BoundaryNorm(scale.bounds, LEVELS)
        mesh = bar.pcolormesh(
            [0, 1], edges, middles[:, None], cmap=colours, norm=norm, edgecolors="face", linewidth=0.15
        )
        mesh.set_gid(BAR)
    bar.set_xlim(0, 1)
    bar.set_ylim(edges[0], edges[-1])
    _finish_bar(bar, figure, theme)


def _finish_bar(bar: Axes, figure: HeatMap, theme: Theme) -> None:
    _frame(bar, BAR)
    bar.set_xticks([])
    bar.yaxis.tick_right()
    bar.yaxis.set_label_position("right")
    finite = figure.values[np.isfinite(figure.values)]
    same = finite.min() == finite.max() and figure.limits is None and figure.reference is None
    if same:
        bar.set_yticks([float(finite[0])], [number(float(finite[0]))])
    else:
        bar.yaxis.set_major_locator(MaxNLocator(5))
        bar.yaxis.set_major_formatter(ScalarFormatter(useOffset=False))
    bar.tick_params(colors=theme.muted, labelcolor=theme.ink, width=0.7, length=2.5)
    if figure.reference is not None:
        bar.axhline(figure.reference, color=theme.ink, linewidth=1.2)
        bar.annotate("null", (0, figure.reference), xytext=(-2, 0), textcoords="offset points", ha="right",
                     va="center", fontsize=7, color=theme.ink)  # fmt: skip
    bar.set_ylabel(**lettering(figure.unit, "ylabel"), color=theme.ink)
    for spine in bar.spines.values():
        spine.set_visible(False)


def _label(axes: Axes, figure: HeatMap, cell: tuple[float, float], theme: Theme) -> None:
    rows, columns = figure.values.shape
    longest = max((len(label) for label in figure.column_labels), default=1)
    upright = longest > 3 and longest * _GLYPH > cell[0]
    across = 9.0 if upright else longest * _GLYPH + 3
    name_axes(axes, figure.column_axis, figure.row_axis)
    if figure.panels is not None:
        _name_panels(axes, figure.panels, rows, columns)
    else:
        x, y = _every(columns, cell[0], across), _every(rows, cell[1], 9.0)
        axes.xaxis.set_major_locator(FixedLocator([column + 0.5 for column in x]))
        axes.yaxis.set_major_locator(FixedLocator([row + 0.5 for row in y]))
        names = [visible(figure.column_labels[i]) for i in x]
        axes.set_xticklabels(names, rotation=90 if upright else 0, parse_math=False)
        axes.set_yticklabels([visible(figure.row_labels[i]) for i in y], parse_math=False)
    axes.tick_params(length=0, pad=3, labelcolor=theme.ink)
    axes.xaxis.label.set_color(theme.ink)
    axes.yaxis.label.set_color(theme.ink)
    _frame(axes, CELLS)
    for spine in axes.spines.values():
        spine.set_edgecolor(theme.grid)


def _name_panels(axes: Axes, panels: tuple[tuple[str, ...], tuple[str, ...]], rows: int, columns: int) -> None:
    """Write the name of each map of a grid at the middle of its side.

    The names of the columns are above the grid.
    """
    for axis, names, n in ((axes.yaxis, panels[0], rows), (axes.xaxis, panels[1], columns)):
        size = (n - len(names) + 1) / len(names)
        axis.set_major_locator(FixedLocator([i * (size + 1) + size / 2 for i in range(len(names))]))
    axes.set_yticklabels([visible(name) for name in panels[0]], parse_math=False)
    axes.set_xticklabels([visible(name) for name in panels[1]], parse_math=False)
    axes.xaxis.tick_top()


def _every(n: int, size: float, spacing: float) -> range:
    """The labelled positions: all, or every 2nd, 5th, 10th … without overlaps."""
    for step in (1, 2, 4, 5, 10, 20, 50, 100, 200, 500):
        if step * size >= spacing:
            return range(0, n, step)
    return range(0, n, n)
