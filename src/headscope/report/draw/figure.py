"""Draws figures with matplotlib: as SVG for a notebook, and as SVG, PDF or PNG for a paper."""

import io
import textwrap
from xml.etree.ElementTree import Element

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure as Canvas

from headscope.core import Curves, Figure, Flow, HeatMap, Histogram, Mosaic, Network
from headscope.core.numbers import number, visible
from headscope.report.colours import Theme, paper
from headscope.report.draw import curves, flow, heat_map, histogram, mosaic, network, svg
from headscope.report.draw.canvas import lettering, settings
from headscope.report.draw.figure_check import check_figure
from headscope.report.draw.heat_map import Scale
from headscope.report.draw.palette import on_page, stand_ins

PIXELS = 1.3  # page pixels per point of a figure, so that 8-point labels are easy to read
_TIPS_AT_MOST = 10_000
_TITLE_GLYPH = 5.6  # mean width of a character of the title, in points


def page_svg(figure: Figure, prefix: str) -> str:
    """The figure as inline SVG; colours are page variables, ids begin with `prefix`."""
    with settings(fonts="none"):
        root = _tree(figure, stand_ins())
        root.set("role", "img")
        root.set("aria-label", visible(figure.title))
        width, height = (float(root.get(side, "0").removesuffix("pt")) for side in ("width", "height"))
        root.set("width", f"{width * PIXELS:.0f}")
        root.set("height", f"{height * PIXELS:.0f}")
        root.set("style", f"--w:{width * PIXELS:.0f}px")
        return svg.text_of(root, prefix, on_page)


def encode(figure: Figure, kind: str) -> bytes:
    """The file of the figure as svg, pdf or png, in the colours for paper."""
    with settings(fonts="path"):
        if kind == "svg":
            root = svg.standalone(_tree(figure, paper(), titled=True))
            return svg.text_of(root, "").encode()
        canvas = _draw(figure, paper(), titled=True)
        (FigureCanvasPdf if kind == "pdf" else FigureCanvasAgg)(canvas)
        out = io.BytesIO()
        metadata = {"CreationDate": None, "Producer": None, "Creator": None} if kind == "pdf" else {"Software": None}
        canvas.savefig(out, format=kind, bbox_inches="tight", pad_inches=0.05, dpi=300, metadata=metadata,
                       transparent=kind == "pdf")  # fmt: skip
        return out.getvalue()


def _draw(figure: Figure, theme: Theme, titled: bool = False, *, cells: bool = True) -> Canvas:
    check_figure(figure)
    match figure:
        case HeatMap():
            canvas = heat_map.draw(figure, theme, cells=cells)
        case Curves():
            canvas = curves.draw(figure, theme)
        case Histogram():
            canvas = histogram.draw(figure, theme)
        case Mosaic():
            canvas = mosaic.draw(figure, theme)
        case Network():
            canvas = network.draw(figure, theme)
        case Flow():
            canvas = flow.draw(figure, theme)
    if titled:
        _add_title(canvas, figure.title, theme)
    return canvas


def _add_title(canvas: Canvas, title: str, theme: Theme) -> None:
    """Put the title above the drawing, aligned with the left end of the panel."""
    FigureCanvasAgg(canvas)
    box, height = canvas.get_tightbbox(), canvas.get_size_inches()[1] * 72
    width = max(24, int(box.width * 72 / _TITLE_GLYPH))
    lines = [title] if "$" in title else textwrap.wrap(title, width)
    for above, line in enumerate(reversed(lines)):
        bottom = (box.y1 * 72 + 6 + above * 12) / height
        canvas.text(0, bottom, **lettering(line, "s"), ha="left", va="bottom", fontsize=9.5, color=theme.ink)


def _tree(figure: Figure, theme: Theme, titled: bool = False) -> Element:
    root = svg.tree(_draw(figure, theme, titled, cells=False))
    if isinstance(figure, HeatMap):
        _draw_cells(root, figure, theme)
    elif isinstance(figure, (Curves, Histogram)):
        series = figure.series if isinstance(figure, Curves) else figure.laws
        for index, curve in enumerate(series):
            svg.add_title(svg.find(root, f"{curves.SERIES}{index}"), visible(curve.label))
    return root


def _draw_cells(root: Element, figure: HeatMap, theme: Theme) -> None:
    """Draw cells as rectangles with tooltips.

    Matplotlib's paths would be larger and have no tooltips.
    """
    scale = heat_map.scale_of(figure)
    if scale is None:
        return
    colours = theme.diverging if scale.diverging else theme.heat
    cells, bar = svg.find(root, heat_map.CELLS), svg.find(root, heat_map.BAR)
    cells_frame, bar_frame = (svg.find(root, heat_map.FRAME + gid) for gid in (heat_map.CELLS, heat_map.BAR))
    svg.rectangles(cells, _cells(svg.extent(cells_frame), figure, scale, colours))
    svg.rectangles(bar, _bar(svg.extent(bar_frame), scale, colours))


def _cells(box: svg.Box, figure: HeatMap, scale: Scale, colours: tuple[str, ...]) -> list[tuple[svg.Box, str, str]]:
    rows, columns = figure.values.shape
    left, top, width, height = box
    wide, high = width / columns, height / rows
    unit = f" {visible(figure.unit)}" if figure.unit else ""
    cells = []
    for (row, column), value in np.ndenumerate(figure.values):
        tip = f"{heat_map.cell_name(figure, row, column)}: {number(value)}{unit if np.isfinite(value) else ''}"
        colour = colours[scale.level(value)] if np.isfinite(value) else "transparent"
        place = (left + column * wide, top + row * high, wide, high)
        cells.append((place, colour, tip if figure.values.size <= _TIPS_AT_MOST else ""))
    return cells


def _bar(box: svg.Box, scale: Scale, colours: tuple[str, ...]) -> list[tuple[svg.Box, str, str]]:
    left, top, width, height = box
    levels = scale.levels_shown
    step = height / len(levels)
    # Each overlaps the one above a little, so that no hairline of the background shows.
    return [
        ((left, top + (len(levels) - 1 - i) * step, width, step * 1.5 if i else step), colours[level], "")
        for i, level in reversed(list(enumerate(levels)))
    ]
