"""How lenses and their measurements show themselves: the question, the columns, the settings."""

import polars as pl
import pytest

from headscope.core import HeadQuantity
from headscope.lenses import lens_members, lens_named
from headscope.lenses.lens import Measurement
from tests.html_page import Page


@pytest.mark.parametrize("name", lens_members())
def test_every_lens_shows_its_question_and_all_its_columns(name: str) -> None:
    lens = lens_named(name)
    page = Page(lens._repr_html_())
    words = "".join(page.text)
    assert page.open == []
    assert not page.scripts
    assert lens.about.question in words
    assert lens.about.columns
    assert all(column in words for column in lens.about.columns)
    assert f'headscope.measure(model, lenses=["{name}"])' in words
    assert all(f"{setting}=" in words for setting in vars(lens.params()))
    lines = repr(lens).splitlines()
    assert lines[0] == f"lens {name}: {lens.about.title}"
    assert len(lines) <= 14


def test_a_measurement_in_a_few_lines() -> None:
    measurement = Measurement(
        {"heads": pl.DataFrame({"layer": [0]})},
        method="Exact: <b>",
        warnings=("One window.",),
        quantities=(HeadQuantity("entropy", "entropy of the rows", "heads"),),
    )
    assert repr(measurement).splitlines() == [
        "measurement",
        "  tables    heads (1 row)",
        "  warnings  One window.",
        "  per head  entropy of the rows",
        "  method    Exact: <b>",
    ]
    assert "Exact: <b>" in "".join(Page(measurement._repr_html_()).text)
    assert repr(Measurement({})) == "measurement"
