"""Figures as data for the page: five digits, nothing that JSON lacks, nothing that leaves its element."""

import base64
import json
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from headscope.core import Curves, Figure, Flow, HeatMap, Histogram, Mosaic, Network, Series
from headscope.report.figure_data import figure_json
from headscope.report.figure_element import figure_element, figures
from headscope.report.figure_size import HALF, figure_size
from tests.html_page import Page
from tests.report.test_draw import FIGURES, NASTY, heat, noise

X = np.linspace(0, 1, 5)
HOSTILE = "</script><img src=x onerror=alert(1)> & \u2028 \ud800"
MOSAIC = Mosaic("m", "M", "C", np.array([[0.0, 1, 2], [2, np.nan, 7]]), ("near", "far"))
NETWORK = Network("n", "N", "C", ("a", "b", "c"), np.array([[0.0, 1, 1], [1, 2, 2]]), ("x", "y"))
EMPTY_NETWORK = replace(NETWORK, edges=np.zeros((0, 3)))
EVERY_FIGURE: dict[str, Figure] = {**FIGURES, "mosaic": MOSAIC, "network": NETWORK, "no edge": EMPTY_NETWORK}
FLOW = FIGURES["flow"]


def data(figure: Figure) -> dict[str, Any]:
    text = figure_json(figure)
    assert not set("<>&\u2028\u2029") & set(text)
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def numbers(values: list[Any]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values])


def assert_five_digits(read: np.ndarray, meant: np.ndarray) -> None:
    np.testing.assert_allclose(read, meant, rtol=5.001e-5, atol=0)


@pytest.mark.parametrize("name", EVERY_FIGURE)
def test_every_figure_has_its_fields_and_its_size(name: str) -> None:
    figure = EVERY_FIGURE[name]
    read = data(figure)
    names = {field.name for field in fields(figure)} - {"caption"}
    assert set(read) == names | {"type", "width", "height"}
    assert read["type"] == type(figure).__name__
    assert (read["width"], read["height"]) == figure_size(figure)
    assert read["title"] == figure.title


@pytest.mark.parametrize("name", [name for name, figure in FIGURES.items() if isinstance(figure, HeatMap)])
def test_maps_survive_to_five_digits(name: str) -> None:
    figure = FIGURES[name]
    assert isinstance(figure, HeatMap)
    rows = data(figure)["values"]
    assert_five_digits(np.array([numbers(row) for row in rows]), figure.values)
    assert data(figure)["row_labels"] == list(figure.row_labels)


@pytest.mark.parametrize("name", [name for name, figure in FIGURES.items() if isinstance(figure, (Curves, Histogram))])
def test_curves_survive_to_five_digits(name: str) -> None:
    figure = FIGURES[name]
    assert isinstance(figure, (Curves, Histogram))
    meant = figure.series if isinstance(figure, Curves) else figure.laws
    read = data(figure)["series" if isinstance(figure, Curves) else "laws"]
    for curve, stored in zip(meant, read, strict=True):
        places = read[stored["x"]]["x"] if isinstance(stored["x"], int) else stored["x"]
        assert_five_digits(numbers(places), curve.x)
        assert_five_digits(numbers(stored["y"]), curve.y)
        assert (stored["label"], stored["role"], stored["points"]) == (curve.label, curve.role, curve.points)
        assert (stored["low"] is None) == (curve.low is None)


def test_curves_with_the_same_places_name_the_first() -> None:
    series = (Series("a", X, X), Series("b", X, X**2), Series("c", 2 * X, X), Series("d", 2 * X, X))
    read = data(Curves("c", "T", "C", "x", "y", series))["series"]
    assert [curve["x"] if isinstance(curve["x"], int) else "own" for curve in read] == ["own", 0, "own", 2]


def test_numbers_have_five_digits_and_whole_ones_all_of_theirs() -> None:
    values = np.array([[1.23456789, 1234567.0, 1.23456789e-12], [-0.0, 1e300, 123456.78]])
    text = figure_json(heat(values))
    assert '"values":[[1.2346,1234567,1.2346e-12],[0,1e+300,1.2346e+05]]' in text


def test_what_json_lacks_is_null_or_infinite() -> None:
    values = np.array([[np.nan, np.inf], [-np.inf, 1.0]])
    assert '"values":[[null,1e999],[-1e999,1]]' in figure_json(heat(values))
    assert data(heat(values))["values"] == [[None, np.inf], [-np.inf, 1]]
    marked = Histogram("h", "T", "C", "x", np.array([0.0, 1]), np.array([np.nan]), marks=(("a", np.nan),))
    assert data(marked)["density"] == [None]
    assert data(marked)["marks"] == [["a", None]]


def unpacked(packed: dict[str, Any]) -> np.ndarray:
    codes = np.frombuffer(base64.b64decode(packed["codes"]), "<u2").reshape(packed["rows"], packed["columns"])
    values = packed["low"] + (packed["high"] - packed["low"]) * codes / 0xFFFE
    return np.where(codes == 0xFFFF, np.nan, values)


def test_a_large_map_is_packed_with_its_gaps() -> None:
    values = noise(60, 70)
    values[3, 4], values[59, 69] = np.nan, np.nan
    read = data(heat(values))["values"]
    step = (np.nanmax(values) - np.nanmin(values)) / 0xFFFE
    np.testing.assert_allclose(unpacked(read), values, rtol=0, atol=step * 0.501)
    assert len(figure_json(heat(values))) < 4 * values.size


@pytest.mark.parametrize("value", [3.0, 0.0, -1e-300])
def test_a_large_constant_map_is_packed(value: float) -> None:
    np.testing.assert_array_equal(unpacked(data(heat(np.full((60, 60), value)))["values"]), value)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_large_map_without_a_range_is_written_out(value: float) -> None:
    values = np.full((60, 60), value)
    values[:, 0] = value
    assert isinstance(data(heat(values))["values"], list)


def test_kinds_are_characters_and_what_is_no_kind_is_empty() -> None:
    assert data(MOSAIC)["values"] == ["012", "200"]
    many = Mosaic("m", "M", "C", np.array([[11.0, 12, 13]]), tuple(map(str, range(13))))
    assert [ord(character) - ord("0") for character in data(many)["values"][0]] == [11, 12, 13]


def test_a_network_keeps_its_edges() -> None:
    assert data(NETWORK)["edges"] == [[0, 1, 1], [1, 2, 2]]
    assert data(EMPTY_NETWORK)["edges"] == []


def test_a_flow_keeps_its_boxes_and_bands() -> None:
    assert isinstance(FLOW, Flow)
    read = data(FLOW)
    assert read["bands"] == [[0, 2, 1, 9], [1, 2, 2, -3], [2, 3, 3, 0.5]]
    assert read["notes"] == [[], [], ["82 % there", "0 % without a"], []]
    assert read["columns"] == [0, 0, 1, 2]


def test_a_flow_is_marked_so_that_it_stands_above_the_sentences() -> None:
    assert 'class="wide flow"' in figure_element(FLOW, "id-0", "file")
    assert 'class="wide flow"' in figure_element(FLOW, "id-0", "file", script=False)
    assert "flow" not in figure_element(NETWORK, "id-0", "file")


@pytest.mark.parametrize("name", EVERY_FIGURE)
def test_an_element_holds_title_caption_and_content_without_a_script(name: str) -> None:
    figure = replace(EVERY_FIGURE[name], caption="What it shows.")
    page = Page(figure_element(figure, "id-0", "file"))
    assert page.open == []
    words = "".join(page.text)
    assert "What it shows." in words
    if not name.startswith("nasty"):
        assert figure.title in words
        assert figure.content() in words
    ((attributes, body),) = page.scripts
    assert attributes == {"type": "application/json", "id": "data-id-0"}
    assert json.loads(body)["name"] == figure.name


def test_hostile_words_stay_data() -> None:
    values = noise(2, 2)
    labels = (HOSTILE, "b")
    hostile = HeatMap(HOSTILE, HOSTILE, HOSTILE, values, labels, labels, HOSTILE, HOSTILE, HOSTILE)
    text = figures((hostile,), "x", "y")
    page = Page(text)
    assert page.open == []
    assert not [tag for tag, _ in page.elements if tag == "img"]
    ((_, body),) = page.scripts
    assert json.loads(body)["row_labels"][0] == HOSTILE
    assert "<img" not in text


BROKEN = heat(noise(2, 2), panels=((), ()))


@pytest.mark.parametrize("script", [True, False])
def test_a_broken_figure_says_so_and_costs_nothing_else(script: bool) -> None:
    text = figures((BROKEN, FIGURES["6×12"]), "x", "y", script)
    page = Page(text)
    assert page.open == []
    assert text.count("This figure could not be drawn.</b> UsageError") == 1
    assert sum(tag == "figure" for tag, _ in page.elements) == 2
    assert ("data-x-1" in text) == script
    assert "data-x-0" not in text


@pytest.mark.parametrize("name", EVERY_FIGURE)
def test_the_reserved_place_fits_a_page(name: str) -> None:
    width, height = figure_size(EVERY_FIGURE[name])
    assert 200 <= width <= 2 * HALF
    assert 100 <= height <= 1000


def test_a_longer_legend_has_more_room() -> None:
    few = Curves("c", "T", "C", "x", "y", (Series("a", X, X), Series("b", X, X)))
    named = replace(few, series=tuple(replace(curve, label=curve.label * 40) for curve in few.series))
    single = replace(few, series=few.series[:1])
    heights = [figure_size(figure)[1] for figure in (single, few, named)]
    assert heights[0] < heights[1] < heights[2]


def test_the_same_figure_gives_the_same_bytes() -> None:
    for figure in (FIGURES["30×9"], FIGURES["many"], MOSAIC):
        assert figure_element(figure, "a", "b") == figure_element(replace(figure), "a", "b")


def test_nasty_labels_are_all_there() -> None:
    assert data(FIGURES["nasty 0"])["row_labels"] == list(NASTY)
