"""Tables in a real browser: one row per head, sorted, filtered, unfolded, downloaded."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from headscope.core import Run
from tests.report.example import HEADS, LAYERS
from tests.report.opened_page import Opened

pytestmark = pytest.mark.browser

FOCUS = "#lens-focus-table-heads"
SPECTRA = "#lens-spectra-table-heads"


def table(opened: Opened, selector: str) -> Any:
    """The table, once the script has taken it over."""
    place = opened.page.locator(selector)
    place.scroll_into_view_if_needed()
    place.locator("tr[data-row]").first.wait_for()
    return place


def rows(opened: Opened, selector: str) -> list[list[str]]:
    code = "t => [...t.querySelectorAll('tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    texts: list[list[str]] = opened.page.eval_on_selector(selector, code)
    return texts


def column(opened: Opened, selector: str, name: str) -> int:
    code = "t => t.map(x => (x.querySelector('button') ?? x).textContent)"
    return int(opened.page.eval_on_selector_all(f"{selector} thead th", code).index(name))


def value(text: str) -> float:
    return float(text.replace("−", "-"))


def test_the_first_click_sorts_descending_and_missing_values_stay_last(opened: Opened) -> None:
    place = table(opened, FOCUS)
    at = column(opened, FOCUS, "entropy nats")
    place.locator(".more").click()
    heading = place.locator(f"thead th:nth-child({at + 1})")
    for direction in ("descending", "ascending"):
        heading.locator("button").click()
        assert heading.get_attribute("aria-sort") == direction
        texts = [row[at] for row in rows(opened, FOCUS)]
        assert len(texts) == LAYERS * HEADS
        assert texts[-1] == "–"
        numbers = [value(text) for text in texts[:-1]]
        assert numbers == sorted(numbers, reverse=direction == "descending")


def test_the_script_writes_numbers_as_python_does(browser: Any, report: Path, opened: Opened) -> None:
    plain = Opened(browser, report, java_script_enabled=False)
    for selector in (FOCUS, SPECTRA, "#lens-spectra-table-layers"):
        code = f"{selector} tbody tr"
        before = [row.locator("td").all_text_contents() for row in plain.page.locator(code).all()]
        table(opened, selector)
        after = [row[1:] for row in rows(opened, selector)]
        assert after == before
    plain.page.close()


def test_filtering_finds_a_head(opened: Opened) -> None:
    place = table(opened, FOCUS)
    for words, expected in (
        ("L3.H7", ["L3.H7"]),
        ("l3", [f"L3.H{head}" for head in range(HEADS)]),
        ("onerror", ["L0.H0"]),
    ):
        place.locator("input").fill(words)
        assert [row[0] for row in rows(opened, FOCUS)] == expected
    place.locator("input").fill("nothing at all")
    assert rows(opened, FOCUS) == []


def test_a_row_leads_to_its_head(opened: Opened) -> None:
    table(opened, FOCUS).locator("a", has_text="L0.H3").click()
    opened.page.locator("#head-page h1", has_text="L0.H3").wait_for()


def test_the_csv_holds_the_whole_table(opened: Opened, run: Run) -> None:
    button = table(opened, FOCUS).locator(".csv")
    with opened.page.expect_download() as caught:
        button.click()
    assert caught.value.suggested_filename == "focus.heads.csv"
    frame = run["focus"].table
    lines = list(csv.DictReader(io.StringIO(Path(caught.value.path()).read_text(encoding="utf-8"))))
    assert len(lines) == frame.height
    assert list(lines[0]) == ["place", "entropy nats", "entropy uniform", "first token", "distance", "top token"]
    for line, row in zip(lines, frame.iter_rows(named=True), strict=True):
        assert line["place"] == f"L{row['layer']}.H{row['head']}"
        assert line["top token"] == row["top_token"]
        assert float(line["distance"]) == pytest.approx(row["distance"], rel=1e-4)


def test_filters_hold_for_the_table_the_address_and_the_atlas(opened: Opened, run: Run) -> None:
    opened.heads().locator("button", has_text="Add a filter").click()
    opened.page.select_option("#heads .filter-list select", "focus.first")
    before = opened.js("document.querySelector('.atlas-grid').toDataURL()")
    opened.page.fill("#heads .filter-list input >> nth=0", "80")  # percent
    many = int((run["focus"].table["first_token"] >= 0.8).sum())
    opened.page.locator("#heads .tools .rest", has_text=f"{many} of 270 heads").wait_for()
    assert "only=focus.first%3A0.8%3A" in opened.page.url
    assert opened.js("document.querySelector('.atlas-grid').toDataURL()") != before
    opened.page.reload()
    opened.heads()
    opened.page.locator("#heads .tools .rest", has_text=f"{many} of 270 heads").wait_for()
    opened.page.locator("#heads button[aria-label='Remove this filter']").click()
    opened.page.locator("#heads .tools .rest", has_text="270 heads, first").wait_for()
    opened.requests.pop()  # the reload


def test_the_table_of_heads_shows_one_quantity_of_each_lens_or_all_of_one(opened: Opened) -> None:
    headings = "[...document.querySelectorAll('#heads thead th')].map(th => th.innerText.split('↕')[0])"
    opened.heads()
    assert len(opened.js(headings)) == 3
    opened.page.select_option("#heads select[aria-label=Columns]", "focus")
    assert opened.js("document.querySelectorAll('#heads thead th').length") == 3
    assert "mass on the first token, %" in opened.page.inner_text("#heads thead")


def test_a_dot_of_the_scatter_is_a_head(opened: Opened) -> None:
    canvas = opened.heads().locator("canvas.scatter")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    # Some dot lies within reach of one of many places.
    for step in range(400):
        x, y = (
            box["x"] + box["width"] * (0.2 + 0.6 * (step % 20) / 20),
            box["y"] + box["height"] * (0.1 + 0.7 * (step // 20) / 20),
        )
        opened.page.mouse.move(x, y)
        if opened.page.locator(".tip").count() and opened.page.is_visible(".tip"):
            break
    label = opened.page.inner_text(".tip").splitlines()[0]
    opened.page.mouse.click(x, y)
    opened.page.locator("#head-page h1", has_text=label).wait_for()
