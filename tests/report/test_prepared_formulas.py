"""The formulas of the package are prepared, and a page holds each of their glyphs once."""

import json
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from scripts.make_formulas import content, formulas, text

from headscope.report.formula import PREPARED, formula, prepared, with_shared_glyphs
from headscope.report.formula_setting import packed, setting_svg, unpacked
from headscope.report.formula_typesetting import typeset

STEM = r"\frac{\sqrt{(b-x)(x-a)}}{2\pi v p x}"


def test_every_formula_of_lenses_experiments_and_claims_is_prepared() -> None:
    wanted = formulas()
    assert len(wanted["display"]) > 500
    for form, sources in wanted.items():
        missing = [tex for tex in sources if tex not in prepared()[form]]
        assert not missing, f"call scripts/make_formulas.py: {missing[:3]}"
        assert len(prepared()[form]) == len(sources), (
            "call scripts/make_formulas.py: it holds formulas that nobody uses"
        )


def test_prepared_formulas_are_what_typesetting_gives() -> None:
    displayed = prepared()["display"]
    for tex in list(displayed)[:: len(displayed) // 5]:
        now = typeset(tex, display=True)
        assert unpacked(displayed[tex], prepared()["glyphs"]) == now, "call scripts/make_formulas.py"


def test_the_file_is_what_the_script_writes() -> None:
    assert text(prepared()) == PREPARED.read_text(encoding="utf-8")
    assert json.loads(text(content({"inline": ["x"], "display": [STEM]})))["inline"].keys() == {"x"}


@pytest.mark.parametrize("display", [False, True])
def test_packing_keeps_everything(display: bool) -> None:
    setting = typeset(STEM, display)
    assert setting.rules
    numbers: dict[str, int] = {}
    stored = json.loads(json.dumps(packed(setting, numbers)))
    assert unpacked(stored, list(numbers)) == setting


def test_a_page_holds_each_outline_once_and_looks_the_same() -> None:
    alone = formula(STEM)
    body = with_shared_glyphs(f"<p>{alone}</p><p>{alone}</p>")
    root = ElementTree.fromstring(f"<body>{body}</body>")
    outlines = {path.get("id"): path.get("d") for path in root.iter("path") if path.get("id")}
    assert len(set(outlines.values())) == len(outlines) > 5
    assert {use.get("href", "")[1:] for use in root.iter("use")} == set(outlines)

    def inlined(match: re.Match[str]) -> str:
        x, y = match["x"] or "0", match["y"] or ""
        place = f' transform="translate({x}{" " + y if y else ""})"' if match["x"] or y else ""
        return f'<path d="{outlines[match["id"]]}"{place}/>'

    drawings = body.split("</defs></svg>")[1]
    again = re.sub(r'<use href="#(?P<id>\w+)"(?: x="(?P<x>[^"]+)")?(?: y="(?P<y>[^"]+)")?/>', inlined, drawings)
    assert again == f"<p>{alone}</p><p>{alone}</p>"


def test_a_page_without_formulas_stays_as_it_is() -> None:
    assert with_shared_glyphs("<p>a</p>") == "<p>a</p>"


def test_prepared_formulas_need_no_matplotlib_and_others_load_it() -> None:
    tex = next(iter(prepared()["display"]))
    code = (
        "import sys\nfrom headscope.report.formula import formula\n"
        f"assert '<svg' in formula({tex!r}, display=True)\nassert 'matplotlib' not in sys.modules\n"
        r"assert '<svg' in formula(r'\zeta^{17}')" + "\nassert 'matplotlib' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_setting_says_where_the_line_is() -> None:
    setting = typeset("y")
    assert setting.box[1] < 0 < setting.box[1] + setting.box[3]
    assert "vertical-align:-" in setting_svg(setting, "y")


def test_small_glyphs_are_where_the_setting_says() -> None:
    setting = typeset(r"x^2_{ij}")
    root = ElementTree.fromstring(setting_svg(setting, "x"))
    places = []
    for parent in root.iter():
        scale = re.search(r"scale\(([\d.]+)\)", parent.get("transform", ""))
        for path in parent.findall("path"):
            x, y, *_ = [*re.findall(r"-?\d+", path.get("transform", "")), "0", "0"]
            places.append((float(x) * float(scale[1] if scale else 1), float(y) * float(scale[1] if scale else 1)))
    assert {glyph.scale for glyph in setting.glyphs} == {1.0, 0.7}
    for glyph, (x, y) in zip(setting.glyphs, places, strict=True):
        assert (x, y) == pytest.approx((glyph.x, glyph.y), abs=1)
