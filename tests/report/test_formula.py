"""Formulas as inline SVG."""

import re
from xml.etree import ElementTree

import pytest

from headscope.report.formula import formula

TEX = (
    r"H_q = -\sum_k A_{qk} \ln A_{qk}",
    r"\frac{\sqrt{(b-x)(x-a)}}{2\pi v p x}",
    r"W = U\,\mathrm{diag}(\sigma)\,V^{\top}",
    r"\left(\sum_i p_i \ln p_i\right)^{-1}",
    "x",
)


@pytest.mark.parametrize("tex", TEX)
def test_a_formula_is_paths_in_the_colour_of_the_text(tex: str) -> None:
    root = ElementTree.fromstring(formula(tex))
    assert root.get("aria-label") == tex
    assert root.get("fill") == "currentColor"
    assert {element.tag for element in root.iter()} <= {"svg", "g", "path"}
    assert all(re.fullmatch(r"[MLQCzhv\d.\- ]+", path.get("d", "")) for path in root.iter("path"))


def test_the_same_formula_gives_the_same_characters_with_or_without_dollars() -> None:
    assert formula(TEX[0]) == formula(f"${TEX[0]}$") == formula(TEX[0])


def test_the_baseline_is_that_of_the_line() -> None:
    def drop(tex: str) -> float:
        return float(re.search(r"vertical-align:(-[\d.]+)em", formula(tex))[1])  # type: ignore[index]

    assert drop("y") < drop("x") < 0, "what hangs below the line is lowered"


def test_a_display_has_tall_fractions() -> None:
    def height(text: str) -> float:
        return float(re.search(r"height:([\d.]+)em", text)[1])  # type: ignore[index]

    assert height(formula(r"\frac{a}{b}", display=True)) > 1.2 * height(formula(r"\frac{a}{b}"))


@pytest.mark.parametrize("tex", [r"\nosuchcommand{x}", r"\frac{1}", "", "</script><b>", "a $ b", "\x00"])
def test_what_cannot_be_set_is_shown_as_it_was_written(tex: str) -> None:
    for text in (formula(tex), formula(tex, display=True)):
        assert "<script" not in text
        assert "<b>" not in text
        assert "\x00" not in text
        ElementTree.fromstring(text)
    if "\\" in tex:
        assert "<code" in formula(tex)
