"""The box of a formula's outline."""

import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path as Outline
from matplotlib.textpath import TextPath

from headscope.report.formula_typesetting import extents


@pytest.mark.parametrize("tex", [r"$\sum_i \sigma_i^2$", r"$\sqrt{x}\,\frac{a}{b}$", "$Q$"])
def test_the_box_is_that_of_matplotlib(tex):
    outline = TextPath((0, 0), tex, size=20.0, prop=FontProperties(size=20.0, math_fontfamily="stix"))
    box = outline.get_extents()
    (x0, y0), (x1, y1) = extents(outline)
    assert (x0, y0, x1, y1) == pytest.approx((box.x0, box.y0, box.x1, box.y1), abs=1e-12)


def test_a_curve_that_bulges_beyond_its_ends():
    outline = Outline([(0, 0), (1, 2), (2, 0)], [Outline.MOVETO, Outline.CURVE3, Outline.CURVE3])
    assert extents(outline) == ((0.0, 0.0), (2.0, 1.0))
