"""The report in a real browser: it asks for nothing, says nothing, and does what its buttons promise."""

import csv
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headscope.core import Run, TokenMap
from headscope.report.page import finding_html
from tests.report.example import HEADS, HOSTILE, LAYERS
from tests.report.opened_page import Opened

pytestmark = pytest.mark.browser


def test_it_renders_every_figure_and_formula(opened: Opened) -> None:
    for id_ in opened.js("[...document.querySelectorAll('[data-figure]')].map(figure => figure.id)"):
        opened.figure(id_)
    sizes = opened.js(
        "[...document.querySelectorAll('.drawing > svg, svg.tex')].map(s => s.getBoundingClientRect().toJSON())"
    )
    assert len(sizes) >= 7 + 6
    assert all(size["width"] > 4 and size["height"] > 4 for size in sizes)
    assert opened.js("document.querySelectorAll('img, iframe').length") == 0
    assert HOSTILE in opened.page.inner_text("h1")


ARRIVED = """id => Math.abs(document.getElementById(id).getBoundingClientRect().top) < 200
  || innerHeight + scrollY >= document.body.scrollHeight - 2"""


def test_headlines_jump_to_their_sections(opened: Opened) -> None:
    for lens in ("focus", "induction"):
        opened.page.click(f".headlines a[href='#lens-{lens}'] >> nth=0")
        opened.page.wait_for_function(ARRIVED, arg=f"lens-{lens}")
        assert opened.page.url.endswith(f"#lens-{lens}")


def rows(opened: Opened, table: str) -> list[list[str]]:
    code = "t => [...t.querySelectorAll('tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    found: list[list[str]] = opened.page.eval_on_selector(table, code)
    return found


HEADS_TABLE = "#lens-focus .table"


def column(opened: Opened, name: str) -> int:
    titles = opened.page.eval_on_selector_all(f"{HEADS_TABLE} th", "t => t.map(x => x.textContent)")
    return int(titles.index(name))


def value(text: str) -> float:
    return float(text.replace("−", "-"))


def test_sorting_both_ways_puts_missing_values_last(opened: Opened) -> None:
    at = column(opened, "entropy_nats")
    opened.page.click(f"{HEADS_TABLE} .more")
    button = f"{HEADS_TABLE} th:nth-child({at + 1}) button"
    for direction in ("ascending", "descending"):
        opened.page.click(button)
        assert opened.page.get_attribute(f"{HEADS_TABLE} th:nth-child({at + 1})", "aria-sort") == direction
        shown = [row[at] for row in rows(opened, HEADS_TABLE)]
        assert len(shown) == LAYERS * HEADS
        assert shown[-1] == "NaN"
        numbers = [value(text) for text in shown[:-1]]
        assert numbers == sorted(numbers, reverse=direction == "descending")


def test_the_script_writes_numbers_as_python_does(opened: Opened) -> None:
    for table in ("#lens-spectra .table >> nth=0", "#lens-spectra .table >> nth=1", HEADS_TABLE):
        before = rows(opened, table)
        holder = opened.page.locator(table)
        holder.locator(".more").click()
        everything = rows(opened, table)
        assert everything[: len(before)] == before
        holder.locator(".more").click()
        assert rows(opened, table) == before


def test_filtering_finds_a_head(opened: Opened) -> None:
    opened.page.fill(f"{HEADS_TABLE} input", "L3.H7")
    assert [row[:2] for row in rows(opened, HEADS_TABLE)] == [["3", "7"]]
    opened.page.fill(f"{HEADS_TABLE} input", "onerror")
    assert [row[:2] for row in rows(opened, HEADS_TABLE)] == [["0", "0"]]
    opened.page.fill(f"{HEADS_TABLE} input", "nothing at all")
    assert rows(opened, HEADS_TABLE) == []


def test_the_csv_holds_the_whole_table(opened: Opened, run: Run) -> None:
    with opened.page.expect_download() as caught:
        opened.page.click(f"{HEADS_TABLE} .csv")
    frame = run["focus"].table
    found = list(csv.DictReader(io.StringIO(Path(caught.value.path()).read_text(encoding="utf-8"))))
    assert len(found) == frame.height
    assert list(found[0]) == frame.columns
    for line, row in zip(found, frame.iter_rows(named=True), strict=True):
        assert line["top_token"] == row["top_token"]
        assert float(line["distance"]) == pytest.approx(row["distance"], rel=1e-7)


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
READ = ("h1", "p.question", ".part p", "td", "figcaption", ".drawing text", ".headlines a", "nav a", "nav ol ol a",
        ".facts dt", ".warning", ".failed .status", ".tools button", "footer")  # fmt: skip


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
