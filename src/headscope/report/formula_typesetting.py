"""Typesets TeX formulas with matplotlib's mathtext. Only formulas that are not prepared need it."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path as Outline
from matplotlib.textpath import text_to_path

from headscope.report.draw.canvas import settings
from headscope.report.formula_setting import EM, Glyph, Setting

Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, right, bottom
_UNIT = EM / text_to_path.FONT_SCALE
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
        places, outlines, rule_outlines = text_to_path.get_glyphs_mathtext(font, dollars)
    line = (0.0, (depth - height) * _UNIT, width * _UNIT, depth * _UNIT)
    shapes = {name: Outline(vertices * _UNIT, codes) for name, (vertices, codes) in outlines.items()}
    # A space has no outline.
    glyphs = [(shapes[name], x * _UNIT, -y * _UNIT, float(scale)) for name, x, y, scale in places if len(shapes[name])]
    rules = tuple(_rule(vertices) for vertices, _ in rule_outlines)
    boxes = [line, *(_glyph_box(*glyph) for glyph in glyphs), *((x, y, x + w, y + h) for x, y, w, h in rules)]
    return Setting(
        _surrounding(boxes),
        tuple(Glyph(path_data(shape), round(x), round(y), round(scale, 3)) for shape, x, y, scale in glyphs),
        rules,
    )


def _with_spaces(tex: str, display: bool) -> str:
    """Add TeX's own spacing: thin spaces around operators, tall display fractions."""
    tex = _SUM.sub(lambda match: match[0] + r"\,", tex)
    tex = _FUNCTION.sub(lambda match: r"\," + match[0], tex)
    return re.sub(r"\\frac(?![a-zA-Z])", r"\\dfrac", tex) if display else tex


def _rule(vertices: Sequence[tuple[Any, Any]]) -> tuple[int, int, int, int]:
    """A fraction bar or the like: x, y, width, height."""
    (x, y), _, (right, top), *_ = vertices
    width, height = max(1, round((right - x) * _UNIT)), max(1, round((top - y) * _UNIT))
    return round(x * _UNIT), -round(top * _UNIT), width, height


def _glyph_box(shape: Outline, x: float, y: float, scale: float) -> Box:
    (left, low), (right, high) = extents(shape)
    return x + left * scale, y - high * scale, x + right * scale, y - low * scale


def _surrounding(boxes: Sequence[tuple[Any, Any, Any, Any]]) -> tuple[int, int, int, int]:
    """Left, top, width and height of the smallest box around boxes (left, top, right, bottom), with a margin."""
    left, top = (round(min(box[i] for box in boxes) - _MARGIN) for i in (0, 1))
    right, bottom = (round(max(box[i] for box in boxes) + _MARGIN) for i in (2, 3))
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
