"""Typesets TeX formulas as inline SVG: outlines in the colour of the text, nothing to fetch or run."""

import html
import re

from matplotlib.font_manager import FontProperties
from matplotlib.mathtext import MathTextParser
from matplotlib.path import Path as Outline
from matplotlib.textpath import TextPath

from headscope.report.canvas import settings
from headscope.report.text import visible

_SIZE = 20.0  # points per em while setting; the page scales by em
_MARGIN = 0.06  # em
_INDEX = r"(?:\{[^{}]*\}|\\[a-zA-Z]+|\w)"
_SUM = re.compile(rf"\\(?:sum|prod)(?![a-zA-Z])(?:\s*[_^]\s*{_INDEX})*")
_FUNCTION = re.compile(r"(?<=[\w})\]])\s*\\(?:ln|log|exp|max|min)(?![a-zA-Z])")


def formula(tex: str, display: bool = False) -> str:
    """`tex` (mathtext's subset, with or without dollars) as `<svg>`; as `<code>` where it cannot be set."""
    source = tex.strip().strip("$").strip()
    label = html.escape(visible(source), quote=True)
    try:
        drawing = _typeset(f"${_spaced(source, display)}$", label)
    except ValueError:
        drawing = f'<code class="tex" title="this formula cannot be typeset here">{label}</code>'
    return f'<div class="formula">{drawing}</div>' if display else drawing


def _spaced(tex: str, display: bool) -> str:
    """`tex` with what TeX does by itself: thin spaces around operators, tall fractions in a display."""
    tex = _SUM.sub(lambda match: match[0] + r"\,", tex)
    tex = _FUNCTION.sub(lambda match: r"\," + match[0], tex)
    return re.sub(r"\\frac(?![a-zA-Z])", r"\\dfrac", tex) if display else tex


def _typeset(dollars: str, label: str) -> str:
    with settings():
        font = FontProperties(size=_SIZE, math_fontfamily="stix")
        width, height, depth, _, _ = MathTextParser("path").parse(dollars, dpi=72, prop=font)
        outline = TextPath((0, 0), dollars, size=_SIZE, prop=font)
    box = outline.get_extents()
    left, right = min(0.0, box.x0), max(width, box.x1)
    top, bottom = max(height - depth, box.y1), max(depth, -box.y0)
    pad = _MARGIN * _SIZE
    across, up = right - left + 2 * pad, top + bottom + 2 * pad
    return (
        f'<svg class="tex" role="img" aria-label="{label}" '
        f'viewBox="{left - pad:.1f} {-top - pad:.1f} {across:.1f} {up:.1f}" '
        f'style="width:{across / _SIZE:.3f}em;height:{up / _SIZE:.3f}em;'
        f'vertical-align:{-(bottom + pad) / _SIZE:.3f}em">'
        f'<path fill="currentColor" d="{_path_data(outline)}"/></svg>'
    )


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
