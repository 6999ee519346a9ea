"""Heads in a real browser: the atlas, the page of a head, keys, addresses, hostile tokens, a lens of a test."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from headscope.core import About, Finding, Headline, HeadQuantity, Run
from headscope.report.page import render
from tests.report.example import HEADS, HOSTILE, LAYERS
from tests.report.opened_page import Opened

pytestmark = pytest.mark.browser


def test_the_first_screen_holds_atlas_and_findings(browser: Any, report: Path) -> None:
    page = Opened(browser, report, viewport={"width": 1440, "height": 900})
    page.page.locator(".atlas-bar .strip").wait_for()
    bottoms = page.js(
        "['#atlas', '#findings', '.lead'].map(s => document.querySelector(s).getBoundingClientRect().bottom)"
    )
    assert max(bottoms) <= 900
    page.page.locator("[data-spark] > .spark").nth(1).wait_for()
    page.page.close()


def test_the_atlas_fits_on_paper(opened: Opened) -> None:
    """It is drawn for the screen, whose column may be wider, and then painted again."""
    opened.page.locator(".atlas-bar .strip").wait_for()
    opened.page.emulate_media(media="print")
    opened.page.add_style_tag(content=".atlas-panels { width: 60px }")
    opened.page.hover(".atlas-grid")  # paints the cells again
    last_cells = """grid => {
      const [right, bottom] = [grid.width - 12, grid.height - 12];
      return [grid.getBoundingClientRect().width, grid.getContext("2d").getImageData(right, bottom, 1, 1).data[3]];
    }"""
    width, opacity = opened.page.locator(".atlas-grid").first.evaluate(last_cells)
    assert width <= 60
    assert opacity > 0


def test_the_atlas_offers_every_quantity_and_stays_in_the_address(opened: Opened) -> None:
    options = opened.js("[...document.querySelectorAll('#atlas select option')].map(option => option.value)")
    assert options == ["spectra.stable_rank", "focus.entropy", "focus.first"]
    assert opened.page.input_value("#atlas select") == "focus.entropy"  # both of its ends have a name
    grid = "document.querySelector('.atlas-grid').toDataURL()"
    before = opened.js(grid)
    opened.page.select_option("#atlas select", "focus.first")
    assert opened.js(grid) != before
    assert opened.page.url.endswith("#?colour=focus.first")
    assert "no null" in opened.page.inner_text(".atlas-bar")
    opened.page.select_option("#atlas select", "spectra.stable_rank")
    assert "null 24.7 directions" in opened.page.inner_text(".atlas-bar")


def test_arrow_keys_move_in_the_atlas_and_enter_opens_the_head(opened: Opened) -> None:
    opened.page.focus(".atlas-panels")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):  # the first key chooses the first head
        opened.page.keyboard.press(key)
    assert opened.page.inner_text(".atlas-readout").startswith("L1.H1; row entropy")
    opened.page.keyboard.press("Enter")
    opened.page.locator("#head-page h1", has_text="L1.H1").wait_for()
    assert opened.page.url.endswith("#L1.H1")


def cell(opened: Opened, layer: int, head: int) -> tuple[float, float]:
    """The middle of a cell of the atlas, in pixels of the view."""
    box = opened.page.locator(".atlas-grid").bounding_box()
    width, height = (box["width"] - 35) / HEADS, (box["height"] - 19) / LAYERS
    return box["x"] + 34 + (head + 0.5) * width, box["y"] + 18 + (layer + 0.5) * height


def test_pointing_at_the_atlas_gives_the_number_and_a_click_opens_the_head(opened: Opened, run: Run) -> None:
    opened.page.mouse.move(*cell(opened, 3, 7))
    tip = opened.page.inner_text(".tip")
    entropy = run["focus"].table["entropy_nats"][3 * HEADS + 7]
    assert tip.splitlines()[0] == "L3.H7"
    assert f"{entropy:.3g} nats" in tip
    assert "null 5.24 nats" in tip
    opened.page.mouse.click(*cell(opened, 3, 7))
    opened.page.locator("#head-page h1", has_text="L3.H7").wait_for()
    assert not opened.page.is_visible("#overview")
    opened.page.go_back()
    opened.page.locator("#overview").wait_for()
    assert not opened.page.is_visible("#head-page")


@pytest.fixture
def at_head(browser: Any, report: Path) -> Any:
    page = Opened(browser, report, viewport={"width": 1440, "height": 900}, hash_="#L3.H7")
    page.page.locator("#head-page h1", has_text="L3.H7").wait_for()
    yield page
    assert page.complaints == []
    page.page.close()


def test_a_head_shows_its_pattern_its_curve_and_its_place_among_all_heads(at_head: Opened, run: Run) -> None:
    assert at_head.js("document.querySelector('.pattern-map canvas').width") == 64
    assert at_head.js("document.querySelectorAll('.thumbnail').length") == HEADS
    assert at_head.page.inner_text(".thumbnail[aria-current]") == "H7"
    assert at_head.js("document.querySelectorAll('#head-page figure svg').length") == 1
    rows = at_head.page.locator(".head-numbers tbody tr:not(.group)")
    assert rows.count() == 3
    first = run["focus"].table["first_token"]
    rank = int((first > first[3 * HEADS + 7]).sum()) + 1
    assert f"{rank} of 270 heads" in rows.nth(2).inner_text()
    assert 'model.pattern("your text", "L3.H7")' in at_head.page.inner_text(".python pre")


def test_tokens_that_attack_the_page_are_text(at_head: Opened) -> None:
    text = at_head.page.locator(".token-text")
    assert HOSTILE in text.inner_text()
    assert "␊" in text.inner_text()
    assert at_head.js("document.querySelectorAll('img, .token-text script').length") == 0
    assert text.locator("span").count() == 64


def test_a_row_is_shown_as_shaded_text_and_a_click_keeps_it(at_head: Opened, run: Run) -> None:
    tokens = at_head.page.locator(".token-text span")
    shades = (
        "[...document.querySelectorAll('.token-text span')].map(s => parseInt(s.style.getPropertyValue('--weight')))"
    )
    tokens.nth(10).hover()
    patterns = run["focus"].patterns
    assert patterns is not None
    weights = patterns.sites[3].weights(7)[10, :64]
    expected = np.round(100 * np.sqrt(weights / weights.max())).astype(int)
    assert at_head.js(shades) == expected.tolist()
    assert tokens.nth(11).get_attribute("class") == "unseen"  # it comes later
    strongest = at_head.page.locator(".strongest li").first.inner_text()
    assert f" {int(weights.argmax())} " in strongest
    tokens.nth(10).click()
    at_head.page.hover("#head-page h1")
    assert at_head.js(shades) == expected.tolist()
    assert "kept" in at_head.page.inner_text(".pattern-text p")
    tokens.nth(10).click()
    at_head.page.hover("#head-page h1")
    assert set(at_head.js(shades)) == {0}


def test_arrow_keys_lead_from_head_to_head(at_head: Opened) -> None:
    for key, label in (
        ("ArrowRight", "L3.H8"),
        ("ArrowRight", "L4.H0"),
        ("ArrowDown", "L5.H0"),
        ("ArrowLeft", "L4.H8"),
        ("ArrowUp", "L3.H8"),
    ):
        at_head.page.keyboard.press(key)
        at_head.page.locator("#head-page h1", has_text=label).wait_for()
        assert at_head.js("location.hash") == f"#{label}"
    at_head.page.keyboard.press("Escape")
    at_head.page.locator("#overview").wait_for()


def test_a_head_without_a_pattern_says_so(browser: Any, report: Path) -> None:
    page = Opened(browser, report, hash_=f"#L{LAYERS - 1}.H0")
    assert "keeps no pattern of this head" in page.page.inner_text("#head-page")
    assert page.complaints == []
    page.page.close()


def test_cards_show_the_pattern_of_their_head(opened: Opened) -> None:
    opened.page.locator(".cards").scroll_into_view_if_needed()
    opened.page.locator(".card canvas").nth(1).wait_for()
    opened.page.locator(".card").first.click()
    opened.page.locator("#head-page h1").wait_for()


def test_a_lens_of_a_test_appears_everywhere(browser: Any, run: Run, tmp_path: Path) -> None:
    """Nothing is written for it: a finding with a quantity is in the atlas, the tables, the verdicts, the search."""
    n = LAYERS * HEADS
    frame = pl.DataFrame(
        {
            "stack": ["only"] * n, "kind": ["self"] * n, "layer": np.repeat(np.arange(LAYERS), HEADS),
            "head": np.tile(np.arange(HEADS), LAYERS), "quantity": ["hue"] * n, "value": np.arange(n) / n,
            "null": np.full(n, 0.5),
        }
    )  # fmt: skip
    finding = Finding(
        "colour", About("Colour of heads", "Which colour has a head?", "None.", (), "", ""), tables={"heads": frame},
        headlines=(Headline("Heads are blue.", "Heads are blue.", 0.99),),
        quantities=(HeadQuantity("hue", "hue of a head", "heads", where={"quantity": "hue"}, null="null"),),
    )  # fmt: skip
    file = tmp_path / "report.html"
    file.write_text(render(replace(run, findings={**run.findings, "colour": finding})), encoding="utf-8")
    page = Opened(browser, file, hash_="#?colour=colour.hue")
    assert page.page.input_value("#atlas select") == "colour.hue"
    assert page.page.inner_text(".top-findings li >> nth=0").startswith("Heads are blue.")
    verdict = page.page.locator(".verdicts tr", has_text="Which colour has a head?")
    assert verdict.locator("td").all_text_contents() == ["Heads are blue.", "0.498 (median head)", "0.500"]
    assert "hue of a head" in page.heads().locator("thead").inner_text()
    assert page.page.locator("#lens-colour-table-heads").count() == 1
    page.page.keyboard.press("/")
    page.page.keyboard.type("colour")
    assert "Colour of heads" in page.page.inner_text("#search-results")
    page.page.keyboard.press("Escape")
    page.page.goto(f"{file.as_uri()}#L0.H5")
    assert "hue of a head" in page.page.inner_text("#head-page")
    assert page.complaints == []
    page.page.close()


def test_without_a_script_sentences_and_tables_are_there(browser: Any, report: Path, run: Run) -> None:
    page = Opened(browser, report, java_script_enabled=False)
    text = page.page.inner_text("main")
    for headline in run["spectra"].headlines:
        assert headline.full.replace("W_Q", "WQ") in text.replace("\u00a0", " ")
    assert "270 heads with 3 quantities each" in text
    assert page.page.locator("#heads tbody tr").count() == 12
    assert page.page.locator("#lens-focus tbody tr").count() == 12
    assert not page.page.is_visible(".search")
    assert page.page.is_visible("#lens-spectra summary >> nth=0")
    page.page.close()
