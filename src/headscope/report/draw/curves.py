"""Draws curves: measured solid, theory dashed, null dotted grey.

Many curves are coloured in their order.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator

from headscope.core import Curves, Series
from headscope.core.figure import Array
from headscope.core.numbers import visible
from headscope.errors import UsageError
from headscope.report.colours import Theme
from headscope.report.draw.canvas import add_axes, dress, lettering, log_axis, name_axes, panel

SERIES = "series-"
_SIZE = (232.0, 150.0)
_STYLES = {"measured": "-", "theory": (0, (4.5, 2)), "null": (0, (1, 1.6))}
_LABEL_AT_MOST = 40
_GLYPH, _HANDLE = 4.3, 29.0  # points: a character of the legend, and the line and space before a name


def draw(figure: Curves, theme: Theme) -> Figure:
    """Draw the curves on a matplotlib figure."""
    canvas, axes = panel(*_SIZE)
    check_drawable(figure.series, figure.log_x, figure.log_y)
    dress(axes, theme)
    colours = colours_of(figure.series, theme)
    for index, (curve, colour) in enumerate(zip(figure.series, colours, strict=True)):
        draw_series(axes, curve, colour, f"{SERIES}{index}")
    if figure.log_x:
        log_axis(axes, "x")
    if figure.log_y:
        log_axis(axes, "y")
    if not figure.log_x and all(np.array_equal(curve.x, np.round(curve.x)) for curve in figure.series):
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))  # there is no layer 0.5
    axes.margins(x=0.02)
    name_axes(axes, figure.x_axis, figure.y_axis)
    measured = [curve for curve in figure.series if curve.role == "measured"]
    in_order = len(measured) > len(theme.series)
    if in_order:
        _order_bar(canvas, measured, theme)
    legend(axes, figure.series, theme, only_laws=in_order)
    return canvas


def draw_series(axes: Axes, curve: Series, colour: str, gid: str) -> None:
    """Draw one curve with its interval."""
    style = "" if curve.points else _STYLES[curve.role]
    width = 1.3 if curve.role == "measured" else 1.1
    # A curve of one point would be invisible.
    marker = "o" if curve.points or np.isfinite(curve.y).sum() == 1 else None
    (line,) = axes.plot(curve.x, curve.y, linestyle=style, color=colour, linewidth=width, marker=marker, markersize=4)
    line.set_gid(gid)
    if curve.low is not None and curve.high is not None:
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0)


def colours_of(series: Sequence[Series], theme: Theme) -> list[str]:
    """The colour of each curve: distinct for few, along a scale for many.

    Theory has the colour of the ink, or that of the curve that it explains.
    """
    measured = sum(curve.role == "measured" for curve in series)
    theory = sum(curve.role == "theory" for curve in series)
    of_measured = _spread(measured, theme)
    of_theory = of_measured if theory == measured > 1 else (theme.ink,) * theory
    pools = {"measured": iter(of_measured), "theory": iter(of_theory)}
    return [theme.muted if curve.role == "null" else next(pools[curve.role]) for curve in series]


def check_drawable(series: Sequence[Series], log_x: bool, log_y: bool) -> None:
    """Refuse curves that would give an empty picture, with the reason."""
    if not any(_visible(curve, log_x, log_y).any() for curve in series):
        log = " on logarithmic axes" if log_x or log_y else ""
        raise UsageError(f"none of the {len(series)} curves has a finite point that can be drawn{log}")


def legend(axes: Axes, series: Sequence[Series], theme: Theme, only_laws: bool = False) -> None:
    """Name the curves above the panel, each name once.

    `only_laws` leaves out measurements.
    """
    lines = {line.get_gid(): line for line in axes.get_lines()}
    entries: dict[str, Line2D] = {}
    for index, curve in enumerate(series):
        if not (only_laws and curve.role == "measured"):
            entries.setdefault(curve.label, lines[f"{SERIES}{index}"])
    if not entries or (len(series) == 1 and series[0].role == "measured"):
        return
    labels = [_shortened(label) for label in entries]
    box = axes.legend(
        list(entries.values()), labels, loc="lower left", bbox_to_anchor=(0, 1.0), frameon=False,
        ncols=_legend_columns(labels), handlelength=2.0, columnspacing=1.2, borderaxespad=0.3,
        labelcolor=theme.ink, fontsize=7.5,
    )  # fmt: skip
    for text in box.get_texts():
        text.set(**lettering(text.get_text(), "text"))


def _legend_columns(labels: Sequence[str]) -> int:
    """The number of legend columns that fit above the panel.

    Matplotlib fills them evenly, one after the other.
    """
    lengths = [len(label) for label in labels]
    for columns in range(min(6, len(labels)), 1, -1):
        widest = (max(part) for part in np.array_split(lengths, columns))
        if sum(_HANDLE + width * _GLYPH for width in widest) <= _SIZE[0] + 30:
            return columns
    return 1


def _order_bar(canvas: Figure, measured: Sequence[Series], theme: Theme) -> None:
    """A strip of the curves' colours that names the first, the last and some between."""
    width, height = canvas.get_size_inches() * 72
    bar = add_axes(canvas, (width + 12, height * 0.1, 8.0, height * 0.8))
    n = len(measured)
    for index, colour in enumerate(_spread(n, theme)):
        bar.axhspan(index, n, color=colour, linewidth=0)  # each overlaps the previous one: no gaps between them
    named = sorted({round(i * (n - 1) / 4) for i in range(5)})
    bar.set_ylim(0, n)
    bar.set_xlim(0, 1)
    bar.set_xticks([])
    bar.yaxis.tick_right()
    bar.yaxis.set_major_locator(FixedLocator([index + 0.5 for index in named]))
    bar.set_yticklabels([_shortened(measured[index].label) for index in named], parse_math=False)
    bar.tick_params(length=0, pad=3, labelcolor=theme.ink)
    for spine in bar.spines.values():
        spine.set_visible(False)


def _spread(n: int, theme: Theme) -> tuple[str, ...]:
    if n <= len(theme.series):
        return theme.series[:n]
    last = len(theme.steps) - 1
    return tuple(theme.steps[round(i * last / (n - 1))] for i in range(n))


def _visible(curve: Series, log_x: bool, log_y: bool) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    def fits(values: Array, log: bool) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        return np.isfinite(values) & ((values > 0) if log else True)

    return fits(curve.x, log_x) & fits(curve.y, log_y)


def _shortened(label: str) -> str:
    label = visible(label)
    return label if len(label) <= _LABEL_AT_MOST else label[: _LABEL_AT_MOST - 1] + "…"
