"""Typesets TeX formulas as inline SVG outlines in the colour of the text.

There is nothing to fetch or run.
"""

import html
import re

import numpy as np
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path as Outline
from matplotlib.textpath import TextPath, text_to_path

from headscope.core.numbers import visible
from headscope.report.draw.canvas import settings

Point = tuple[float, float]
_SIZE = 20.0  # points per em while setting; the page scales by em
_MARGIN = 0.06  # em
_INDEX = r"(?:\{[^{}]*\}|\\[a-zA-Z]+|\w)"
_SUM = re.compile(rf"\\(?:sum|prod)(?![a-zA-Z])(?:\s*[_^]\s*{_INDEX})*")
_FUNCTION = re.compile(r"(?<=[\w})\]])\s*\\(?:ln|log|exp|max|min)(?![a-zA-Z])")


def formula(tex: str, display: bool = False) -> str:
    """Typeset `tex` (mathtext's subset, with or without dollars) as `<svg>`.

    Falls back to `<code>` where it cannot be typeset.
    """
    source = tex.strip().strip("$").strip()
    label = html.escape(visible(source), quote=True)
    try:
        drawing = _typeset(f"${_with_spaces(source, display)}$", label)
    except ValueError:
        drawing = f'<code class="tex" title="this formula cannot be typeset here">{label}</code>'
    return f'<div class="formula">{drawing}</div>' if display else drawing


def _with_spaces(tex: str, display: bool) -> str:
    """Add TeX's own spacing: thin spaces around operators, tall display fractions."""
    tex = _SUM.sub(lambda match: match[0] + r"\,", tex)
    tex = _FUNCTION.sub(lambda match: r"\," + match[0], tex)
    return re.sub(r"\\frac(?![a-zA-Z])", r"\\dfrac", tex) if display else tex


def _typeset(dollars: str, label: str) -> str:
    with settings():
        font = FontProperties(size=_SIZE, math_fontfamily="stix")
        width, height, depth = _measure(dollars, font)
        outline = TextPath((0, 0), dollars, size=_SIZE, prop=font)
    (x0, y0), (x1, y1) = _extents(outline)
    left, right = min(0.0, x0), max(width, x1)
    top, bottom = max(height - depth, y1), max(depth, -y0)
    pad = _MARGIN * _SIZE
    across, up = right - left + 2 * pad, top + bottom + 2 * pad
    return (
        f'<svg class="tex" role="img" aria-label="{label}" '
        f'viewBox="{left - pad:.1f} {-top - pad:.1f} {across:.1f} {up:.1f}" '
        f'style="width:{across / _SIZE:.3f}em;height:{up / _SIZE:.3f}em;'
        f'vertical-align:{-(bottom + pad) / _SIZE:.3f}em">'
        f'<path fill="currentColor" d="{_path_data(outline)}"/></svg>'
    )


def _measure(dollars: str, font: FontProperties) -> tuple[float, float, float]:
    """Width, height and depth of a formula.

    They come from the parse of `TextPath`: parsing is slow, and this one is cached.
    """
    large = font.copy()
    large.set_size(text_to_path.FONT_SCALE)
    width, height, depth, _, _ = text_to_path.mathtext_parser.parse(dollars, text_to_path.DPI, large)
    scale = _SIZE / text_to_path.FONT_SCALE
    return width * scale, height * scale, depth * scale


def _extents(outline: Outline) -> tuple[Point, Point]:
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


def _path_data(outline: Outline) -> str:
    letters = {Outline.MOVETO: "M", Outline.LINETO: "L", Outline.CURVE3: "Q", Outline.CURVE4: "C"}
    parts = []
    for points, code in outline.iter_segments(simplify=False, curves=True):
        if code == Outline.CLOSEPOLY:
            parts.append("z")
            continue
        pairs = zip(points[::2], points[1::2], strict=True)
        parts.append(letters[code] + " ".join(f"{_short(x)} {_short(-y)}" for x, y in pairs))
    return "".join(parts)


def _short(value: float) -> str:
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
