"""Typesets TeX formulas with matplotlib's mathtext. Only formulas that are not prepared need it."""

import re

import numpy as np
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path as Outline
from matplotlib.textpath import text_to_path

from headscope.report.draw.canvas import settings
from headscope.report.formula_setting import EM, Glyph, Setting

Point = tuple[float, float]
_MARGIN = 0.06 * EM
_INDEX = r"(?:\{[^{}]*\}|\\[a-zA-Z]+|\w)"
_SUM = re.compile(rf"\\(?:sum|prod)(?![a-zA-Z])(?:\s*[_^]\s*{_INDEX})*")
_FUNCTION = re.compile(r"(?<=[\w})\]])\s*\\(?:ln|log|exp|max|min)(?![a-zA-Z])")


def typeset(tex: str, display: bool = False) -> Setting:
    """Typeset `tex`, mathtext's subset without dollars.

    Raises:
        ValueError: Mathtext does not know a command, or the formula is incomplete.
    """
    dollars = f"${_with_spaces(tex, display)}$"
    with settings():
        font = FontProperties(size=text_to_path.FONT_SCALE, math_fontfamily="stix")
        width, height, depth, _, _ = text_to_path.mathtext_parser.parse(dollars, text_to_path.DPI, font)
        places, outlines, rules = text_to_path.get_glyphs_mathtext(font, dollars)
    unit = EM / text_to_path.FONT_SCALE
    shapes = {name: Outline(vertices * unit, codes) for name, (vertices, codes) in outlines.items()}
    glyphs = tuple(
        Glyph(path_data(shapes[name]), round(x * unit), -round(y * unit), round(scale, 3))
        for name, x, y, scale in places
        if len(shapes[name].vertices)  # a space has no outline
    )
    boxes = [_rule(vertices, unit) for vertices, _ in rules]
    corners = [
        (0.0, (depth - height) * unit, width * unit, depth * unit),
        *((x, y, x + w, y + h) for x, y, w, h in boxes),
    ]
    for name, x, y, scale in places:
        if len(shapes[name].vertices):
            (x0, y0), (x1, y1) = extents(shapes[name])
            left, down = x * unit, -y * unit
            corners.append((left + x0 * scale, down - y1 * scale, left + x1 * scale, down - y0 * scale))
    return Setting(_box(corners), glyphs, tuple(boxes))


def _with_spaces(tex: str, display: bool) -> str:
    """Add TeX's own spacing: thin spaces around operators, tall display fractions."""
    tex = _SUM.sub(lambda match: match[0] + r"\,", tex)
    tex = _FUNCTION.sub(lambda match: r"\," + match[0], tex)
    return re.sub(r"\\frac(?![a-zA-Z])", r"\\dfrac", tex) if display else tex


def _rule(vertices: list[Point], unit: float) -> tuple[int, int, int, int]:
    """A fraction bar or the like: x, y, width, height."""
    (x, y), _, (right, top), *_ = vertices
    width, height = max(1, round((right - x) * unit)), max(1, round((top - y) * unit))
    return round(x * unit), -round(top * unit), width, height


def _box(corners: list[tuple[float, float, float, float]]) -> tuple[int, int, int, int]:
    left, top = (round(min(corner[i] for corner in corners) - _MARGIN) for i in (0, 1))
    right, bottom = (round(max(corner[i] for corner in corners) + _MARGIN) for i in (2, 3))
    return left, top, right - left, bottom - top


def extents(outline: Outline) -> tuple[Point, Point]:
    r"""The corners of the smallest box around lines and quadratic curves.

    A curve from a over the control point b to c turns at $t = (a - b) / (a - 2b + c)$ in each coordinate; where t is
    in (0, 1), the curve reaches $a + (b - a) t$ there. `Path.get_extents` says the same, curve by curve.
    """
    codes = None if outline.codes is None else np.asarray(outline.codes)
    if codes is None or bool((codes == Outline.CURVE4).any()):
        box = outline.get_extents()
        return (box.x0, box.y0), (box.x1, box.y1)
    points = np.asarray(outline.vertices, dtype=np.float64)[codes != Outline.CLOSEPOLY]
    kinds = codes[codes != Outline.CLOSEPOLY]
    controls = np.flatnonzero(kinds == Outline.CURVE3)[::2]
    a, b, c = points[controls - 1], points[controls], points[controls + 1]
    bend = a - 2 * b + c
    turn = np.divide(a - b, bend, out=np.zeros_like(bend), where=bend != 0)
    turns = np.where((turn > 0) & (turn < 1), a + (b - a) * turn, a)
    extreme_points = np.concatenate([np.delete(points, controls, axis=0), turns])
    low, high = extreme_points.min(0), extreme_points.max(0)
    return (float(low[0]), float(low[1])), (float(high[0]), float(high[1]))


def path_data(outline: Outline) -> str:
    """An outline as the `d` of an SVG path, in whole units."""
    letters = {Outline.MOVETO: "M", Outline.LINETO: "L", Outline.CURVE3: "Q", Outline.CURVE4: "C"}
    parts = []
    for points, code in outline.iter_segments(simplify=False, curves=True):
        if code == Outline.CLOSEPOLY:
            parts.append("z")
            continue
        pairs = zip(points[::2], points[1::2], strict=True)
        parts.append(letters[code] + " ".join(f"{round(x)} {-round(y)}" for x, y in pairs))
    return "".join(parts)
