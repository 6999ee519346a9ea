"""The colours of figures are those of matplotlib's map, light and dark, without matplotlib."""

import re
import subprocess
import sys

import matplotlib
import numpy as np
import pytest

from headscope.report.colours import LEVELS, STEPS, blend, night, paper, variables


def channels(colour: str) -> np.ndarray:
    return np.array(list(bytes.fromhex(colour[1:])), dtype=float)


@pytest.mark.parametrize(
    ("colours", "low", "high"),
    [(paper().heat, 0.0, 1.0), (paper().steps, 0.0, 0.85), (night().steps, 0.3, 1.0)],
)
def test_sequential_colours_are_viridis(colours: tuple[str, ...], low: float, high: float) -> None:
    exact = matplotlib.colormaps["viridis"](np.linspace(low, high, len(colours)))[:, :3] * 255
    assert np.abs(np.array([channels(colour) for colour in colours]) - exact).max() < 2  # of 255 levels


def test_a_blend_begins_and_ends_with_its_anchors() -> None:
    assert blend(("#000000", "#ff0000", "#ffffff"), 5) == ("#000000", "#800000", "#ff0000", "#ff8080", "#ffffff")


def test_the_middle_of_the_diverging_colours_is_the_palest_on_paper_and_the_darkest_at_night() -> None:
    for theme, choose in ((paper(), np.argmax), (night(), np.argmin)):
        sums = [channels(colour).sum() for colour in theme.diverging]
        assert choose(sums) in (LEVELS // 2 - 1, LEVELS // 2)


def test_every_variable_is_defined_in_both_themes() -> None:
    light, dark = variables().split("@media")
    names = set(re.findall(r"--hs-(\w+):", light))
    assert names == set(paper().named()) == set(night().named())
    assert len(names) == 3 + 6 + STEPS + 2 * LEVELS
    assert set(re.findall(r"--hs-(\w+):", dark)) <= names


def test_a_report_is_written_without_matplotlib() -> None:
    code = (
        "import sys\nfrom dataclasses import replace\nimport headscope.api\nfrom headscope.core import Run\n"
        "from headscope.report.page import render\nfrom tests.report.example import example_run\n"
        "run = example_run()\nfocus = run['focus']\n"
        "known = replace(focus, about=replace(focus.about, formulas=(), definition=''))\n"
        "render(Run(run.model, run.sites, {'focus': known}, run.text))\n"
        "assert 'matplotlib' not in sys.modules, 'a report does not need matplotlib'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
