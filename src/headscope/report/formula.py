"""Formulas as inline SVG in the colour of the text: nothing to fetch, nothing to run.

Those of lenses, experiments and claims are prepared: `formulas.json` holds them typeset
(`scripts/make_formulas.py` writes it). Any other, say of a lens of another package, is typeset when it is needed.
"""

import html
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from headscope.core.numbers import visible
from headscope.report.formula_setting import Setting, setting_svg, unpacked

PREPARED = Path(__file__).with_name("formulas.json")
_FORMULA = re.compile(r'<svg class="tex".*?</svg>')
# A shorter outline, such as a minus sign, is shorter than a reference to it.
_GLYPH = re.compile(r'<path d="(?P<outline>M[^"]{60,})"(?: transform="translate\((?P<x>-?\d+)(?: (?P<y>-?\d+))?\)")?/>')


def formula(tex: str, display: bool = False) -> str:
    """Typeset `tex` (mathtext's subset, with or without dollars) as `<svg>`.

    Falls back to `<code>` where it cannot be typeset.
    """
    source = bare(tex)
    label = html.escape(visible(source), quote=True)
    try:
        drawing = setting_svg(_setting(source, display), label)
    except ValueError:
        drawing = f'<code class="tex" title="this formula cannot be typeset here">{label}</code>'
    return f'<div class="formula">{drawing}</div>' if display else drawing


def bare(tex: str) -> str:
    """A formula without dollars and blanks around it."""
    return tex.strip().strip("$").strip()


def _setting(tex: str, display: bool) -> Setting:
    content = prepared()
    packed = content["display" if display else "inline"].get(tex)
    if packed is not None:
        return unpacked(packed, content["glyphs"])
    from headscope.report.formula_typesetting import typeset

    return typeset(tex, display)


@cache
def prepared() -> dict[str, Any]:
    """The formulas of the package as they were typeset.

    `inline` and `display` map TeX to packed settings; `glyphs` lists the outlines that these count.
    """
    content: dict[str, Any] = json.loads(PREPARED.read_text(encoding="utf-8"))
    return content


def with_shared_glyphs(page: str) -> str:
    """The page with each outline of its formulas once, at its beginning: they are most of a formula's bytes."""
    outlines: dict[str, int] = {}

    def refer(glyph: re.Match[str]) -> str:
        number = outlines.setdefault(glyph["outline"], len(outlines))
        place = "".join(f' {axis}="{glyph[axis]}"' for axis in ("x", "y") if glyph[axis])
        return f'<use href="#tex{number}"{place}/>'

    page = _FORMULA.sub(lambda match: _GLYPH.sub(refer, match[0]), page)
    shapes = "".join(f'<path id="tex{number}" d="{outline}"/>' for outline, number in outlines.items())
    return f'<svg class="glyphs" aria-hidden="true"><defs>{shapes}</defs></svg>{page}' if outlines else page
