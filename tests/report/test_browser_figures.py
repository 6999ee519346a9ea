"""The figures of the report in a real browser: drawn near the view, explained under the pointer, saved, printed."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from headscope.core import Run
from headscope.report.colours import paper
from tests.report.example import HEADS, LAYERS
from tests.report.opened_page import Opened

pytestmark = pytest.mark.browser


def test_figures_far_from_the_view_wait_and_the_page_does_not_jump(opened: Opened) -> None:
    drawings = "document.querySelectorAll('.drawing > svg').length"
    heights = "[...document.querySelectorAll('[data-figure]')].map(figure => figure.offsetHeight)"
    before, reserved = opened.js(drawings), opened.js(heights)
    assert before < len(reserved)
    opened.js("dispatchEvent(new Event('beforeprint'))")
    opened.page.locator("[data-figure] .drawing > p").first.wait_for(state="detached")
    assert opened.js(drawings) == len(reserved)
    assert opened.js(heights) == reserved


def test_without_a_script_a_figure_says_what_it_holds(browser: Any, report: Path, run: Run) -> None:
    page = Opened(browser, report, java_script_enabled=False)
    figure = run["focus"].figures[2]
    place = page.page.locator("#lens-focus-2")
    assert figure.content() in place.text_content()
    assert figure.caption in place.text_content()
    assert not place.locator("button.svg").is_visible()
    assert place.bounding_box()["height"] < 200  # no empty place where a drawing would be
    page.page.close()


def saved(opened: Opened, id_: str, form: str) -> tuple[str, bytes]:
    """Name and content of a figure that is saved by its button."""
    button = opened.figure(id_).locator(f"button.{form}")
    with opened.page.expect_download() as caught:
        button.click()
    return caught.value.suggested_filename, Path(caught.value.path()).read_bytes()


def test_figures_are_saved_as_svg_and_png_in_the_colours_of_paper(browser: Any, report: Path) -> None:
    dark = Opened(browser, report, color_scheme="dark")
    name, content = saved(dark, "lens-focus-1", "svg")
    assert name == "focus-first-token.svg"
    text = content.decode()
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "".join(next(root.iter("{http://www.w3.org/2000/svg}text")).itertext()) == "Mass on the first token"
    assert "var(" not in text
    assert paper().ink in text
    assert paper().diverging[-1] in text
    assert "transient" not in text
    _, image = saved(dark, "lens-spectra-2", "png")
    assert image.startswith(b"\x89PNG")
    assert int.from_bytes(image[16:20], "big") > 900
    assert dark.complaints == []
    dark.page.close()


def test_a_cell_tells_its_value_at_once(opened: Opened) -> None:
    cells = opened.figure("lens-focus-0").locator("rect.transient").last
    box = cells.bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] * 7.5 / HEADS, box["y"] + box["height"] * 3.5 / LAYERS)
    tip = opened.page.inner_text(".tip")
    assert re.fullmatch(r"L3\.H7: [\d.]+ nats", tip)
    opened.page.mouse.move(box["x"] + box["width"] * 2.5 / HEADS, box["y"] + box["height"] * 4.5 / LAYERS)
    assert opened.page.inner_text(".tip") == "L4.H2: no value"
    opened.page.hover("h1")
    assert not opened.page.is_visible(".tip")


def test_a_curve_tells_its_values_and_can_be_enlarged(opened: Opened) -> None:
    figure = opened.figure("lens-focus-2")
    ticks = figure.locator("[aria-label='x-axis tick label']")
    everything = ticks.text_content()
    cover = figure.locator(".chart-cover")
    box = cover.bounding_box()
    middle = box["y"] + box["height"] / 2
    opened.page.mouse.move(box["x"] + box["width"] / 2, middle)
    assert re.match(r"(measured|uniform attention)\nlayer 1\d: [\d.]+", opened.page.inner_text(".tip"))
    opened.page.mouse.down()
    opened.page.mouse.move(box["x"] + box["width"] * 0.7, middle, steps=3)
    opened.page.mouse.up()
    part = ticks.text_content()
    assert part != everything
    assert part.startswith(("15", "16"))
    cover.dblclick()
    assert ticks.text_content() == everything
    assert not figure.locator(".reset-zoom").count()


BREAK = """id => {
  const data = document.getElementById(`data-${id}`);
  data.textContent = data.textContent.slice(0, 40);
}"""


def test_data_that_cannot_be_read_cost_one_figure(opened: Opened) -> None:
    opened.js(BREAK, "lens-focus-2")
    opened.page.locator("#lens-focus-2").scroll_into_view_if_needed()
    note = opened.page.locator("#lens-focus-2 .status")
    note.wait_for()
    assert "This figure could not be drawn." in note.inner_text()
    assert not opened.page.locator("#lens-focus-2 button").count()
    opened.figure("lens-focus-1")
