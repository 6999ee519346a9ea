"""The report in a real browser: it asks for nothing, says nothing, and does what its buttons promise."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headscope.core import Run, TokenMap
from headscope.report.page import finding_html
from tests.report.example import HOSTILE
from tests.report.opened_page import Opened

pytestmark = pytest.mark.browser


def test_it_renders_every_figure_and_formula(opened: Opened) -> None:
    for id_ in opened.js("[...document.querySelectorAll('[data-figure]')].map(figure => figure.id)"):
        opened.figure(id_)
    opened.js("document.querySelectorAll('details').forEach(folded => { folded.open = true; })")
    sizes = opened.js(
        "[...document.querySelectorAll('.drawing > svg, svg.tex')].map(s => s.getBoundingClientRect().toJSON())"
    )
    assert len(sizes) >= 7 + 6
    assert all(size["width"] > 4 and size["height"] > 4 for size in sizes)
    assert opened.js("document.querySelectorAll('img, iframe').length") == 0
    assert HOSTILE in opened.page.inner_text("h1")


ARRIVED = """Math.abs(document.getElementById(argument).getBoundingClientRect().top) < 200
  || innerHeight + scrollY >= document.body.scrollHeight - 2"""


def test_findings_verdicts_and_contents_lead_to_their_sections(opened: Opened) -> None:
    for link, lens in ((".top-findings a", "focus"), (".verdicts a", "induction"), ("nav a", "spectra")):
        opened.page.click(f"{link}[href='#lens-{lens}']")
        opened.until(ARRIVED, f"lens-{lens}")
        assert opened.page.url.endswith(f"#lens-{lens}")


def test_the_contents_mark_and_open_the_section_of_the_reader(opened: Opened) -> None:
    current = "[...document.querySelectorAll('nav [aria-current]')].map(link => link.hash)"
    assert opened.js(current) == ["#overview"]
    opened.js("document.getElementById('lens-focus').scrollIntoView()")
    opened.until("document.querySelector('nav [aria-current]').hash === '#lens-focus'")
    assert opened.js(current) == ["#lens-focus"]
    links = opened.page.locator("nav .lenses > li > ol")
    assert [links.nth(place).is_visible() for place in range(links.count())] == [False, True]


@pytest.mark.parametrize(
    ("words", "arrived", "colour"),
    [
        ("3.7", "#L3.H7", None),
        ("induc", "#lens-induction", None),
        ("mass on the first", "#overview", "focus.first"),
    ],
)
def test_the_search_finds_heads_lenses_and_quantities(
    opened: Opened, words: str, arrived: str, colour: str | None
) -> None:
    opened.page.keyboard.press("/")
    assert opened.js("document.activeElement.type") == "search"
    opened.page.keyboard.type(words)
    opened.page.keyboard.press("Enter")
    address = opened.js("location.hash")
    assert address == (arrived if colour is None else f"{arrived}?colour={colour}")
    assert not opened.page.is_visible("#search-results")
    if colour is not None:
        assert opened.page.input_value("#atlas select") == colour


def test_links_of_headings_can_be_copied(browser: Any, report: Path) -> None:
    page = Opened(browser, report, permissions=["clipboard-read", "clipboard-write"])
    page.page.hover("#lens-focus h2")
    page.page.click("#lens-focus a.copy")
    page.until("document.querySelector('#lens-focus a.copy').dataset.tip === 'link copied'")
    assert page.js("navigator.clipboard.readText()").endswith("report.html#lens-focus")
    assert page.complaints == []
    page.page.close()


LUMINANCE = """selector => {
  const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const element = document.querySelector(selector), style = getComputedStyle(element);
  let behind = element;
  while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
  return [element.tagName === "text" ? style.fill : style.color, getComputedStyle(behind).backgroundColor].map(light);
}"""
READ = ("h1", ".lead", ".model-line", "p.question", ".answers p", "td", "th small", "figcaption", ".drawing text",
        ".top-findings .says", ".top-findings .from", ".card .ends i", "nav a", "nav ol ol a", "summary", ".facts dt",
        ".warning", ".failed .status", ".tools button", "footer")  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_light_and_dark(browser: Any, report: Path, scheme: str) -> None:
    page = Opened(browser, report, color_scheme=scheme)
    page.figure("lens-spectra-0")
    for selector in READ:
        text, back = page.js(LUMINANCE, selector)
        assert (back > 0.8) == (scheme == "light")
        contrast = (max(text, back) + 0.05) / (min(text, back) + 0.05)
        assert contrast >= 4.5, f"{selector} has contrast {contrast:.1f} in {scheme}"
    page.page.close()


@pytest.mark.parametrize("width", [320, 375, 768, 1024, 1600])
def test_no_width_makes_the_page_scroll_sideways(browser: Any, report: Path, width: int) -> None:
    page = Opened(browser, report, viewport={"width": width, "height": 700})
    assert page.js("document.documentElement.scrollWidth") <= width
    page.page.close()


def test_it_prints(opened: Opened) -> None:
    paper = opened.page.pdf(format="A4", prefer_css_page_size=True)
    assert paper.startswith(b"%PDF")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", paper)) <= 20


STYLES = """ids => ids.map((id) => {
  const s = getComputedStyle(document.getElementById(id));
  return [s.font, s.color, s.padding, s.margin, s.border, s.backgroundColor];
})"""


@pytest.mark.parametrize("kind", ["finding", "run", "token map"])
def test_what_shows_itself_leaves_the_notebook_around_it_alone(
    browser: Any, run: Run, tmp_path: Path, kind: str
) -> None:
    hostile_map = TokenMap(np.eye(2), [HOSTILE, "b"], ["a", HOSTILE], HOSTILE)
    output = {"finding": finding_html(run["focus"]), "run": run._repr_html_(), "token map": hostile_map._repr_html_()}
    around = "<!doctype html><html><body><h2 id=mine>Mine</h2><table><tr><td id=cell>1</td></tr></table>"
    plain, with_output = tmp_path / "plain.html", tmp_path / "notebook.html"
    plain.write_text(around, encoding="utf-8")
    with_output.write_text(around + output[kind], encoding="utf-8")
    styles = []
    for file in (plain, with_output):
        page = Opened(browser, file)
        styles.append(page.js(STYLES, ["mine", "cell"]))
        assert page.complaints == []
        assert page.requests == [file.as_uri()]
        page.page.close()
    assert styles[0] == styles[1]


def test_the_cells_of_a_token_map_lie_where_their_tokens_are(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "map.html"
    tokens = [" cat", "\n", "a very long token indeed", "漢字"]
    html = TokenMap(np.eye(4), tokens, tokens, "identity")._repr_html_()
    file.write_text(f"<!doctype html><html><body>{html}", encoding="utf-8")
    page = Opened(browser, file)
    boxes = """name => [...document.querySelectorAll(name)].map((element) => {
      const box = element.getBoundingClientRect();
      return [box.x + box.width / 2, box.y + box.height / 2, box.height];
    })"""
    columns, rows, cells = (page.js(boxes, name) for name in (".hs-top b", ".hs-side b", ".hs-cells i"))
    assert len(cells) == 16
    assert columns[2][2] > 3 * columns[0][2] / 2  # written upwards: the long token is taller
    for index, (x, y, _) in enumerate(cells):
        assert x == pytest.approx(columns[index % 4][0], abs=1.5)
        assert y == pytest.approx(rows[index // 4][1], abs=1.5)
    assert page.complaints == []
    page.page.close()
