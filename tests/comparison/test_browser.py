"""The page of a comparison in a real browser: it asks for nothing, says nothing, and shows one pair at a time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headscope.comparison.comparison import Comparison
from tests.comparison.made_runs import HOSTILE, made_run, text_finding, weight_finding
from tests.report.opened_page import Opened

pytestmark = pytest.mark.browser
BASE = [0.1, 0.2, 0.3, 0.4]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = [
        made_run(text_finding(BASE), weight_finding([1, 2, 4, 8])),
        made_run(text_finding([0.1, 0.2, 0.3, 0.88]), weight_finding([1, 2, 4, 16]), name=f"second {HOSTILE}"),
        made_run(text_finding([0.1, 0.8, 0.3, 0.4]), weight_finding([1, 2, 4, 8]), name="third"),
    ]
    return Comparison.of(runs).save(tmp_path_factory.mktemp("comparison"))


@pytest.fixture
def opened(browser: Any, file: Path) -> Iterator[Opened]:
    """The page, which must stay silent whatever the test does with it."""
    page = Opened(browser, file, viewport={"width": 1440, "height": 900})
    page.page.locator(".atlas-of:not([hidden]) .atlas-bar .strip").wait_for()
    yield page
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith(("blob:", "data:"))] == [file.as_uri()]
    page.page.close()


def test_the_first_screen_holds_models_atlas_and_differences(opened: Opened) -> None:
    bottoms = opened.js(
        "['#atlas', '#findings', '.compared'].map(s => document.querySelector(s).getBoundingClientRect().bottom)"
    )
    assert max(bottoms) <= 900
    assert opened.page.locator(".compared li").count() == 3
    assert HOSTILE in opened.page.inner_text("h1")
    assert opened.page.locator("img").count() == 0


def test_the_atlas_has_0_in_the_middle_and_offers_every_quantity(opened: Opened) -> None:
    menu = opened.page.locator(".atlas-of:not([hidden]) select")
    options = menu.locator("option").evaluate_all("options => options.map(option => option.value)")
    assert options == ["movement", "focus.first", "spectra.rank"]
    menu.select_option("focus.first")
    bar = opened.page.inner_text(".atlas-of:not([hidden]) .atlas-bar")
    assert "0 points" in bar
    assert "48 points" in bar
    assert "faint: not moved" in bar
    opened.page.locator(".atlas-of:not([hidden]) canvas").hover(position={"x": 100, "y": 80})
    assert opened.page.inner_text(".tip").splitlines() == [
        "L1.H1",
        "mass on the first token: 40 % → 88 %",
        "difference +48 points",
        "95 % interval +45.2 to +50.8",
        "moved",
    ]


def test_a_menu_chooses_the_pair(opened: Opened) -> None:
    visible = "[...document.querySelectorAll('.lead')].filter(lead => !lead.hidden).map(lead => lead.innerText)"
    assert len(opened.js(visible)) == 1
    opened.page.select_option(".pair-menu select", label="third minus first")
    assert opened.js(visible) == [
        "third: 1 of 4 heads moved beyond the error of sampling text. The weights of no head differ."
    ]
    assert opened.page.locator("#findings a:visible").all_inner_texts()[0].startswith("L0.H1")
    cards = opened.page.locator(".pair-card:visible")
    assert cards.count() == 1
    cards.first.scroll_into_view_if_needed()
    opened.page.locator(".pair-card:visible canvas").nth(1).wait_for()
    assert cards.locator("small").all_inner_texts() == ["A", "C"]


def test_the_page_of_a_head_shows_both_patterns_and_every_number(opened: Opened) -> None:
    opened.page.click("#findings a[href='#L1.H1']:visible >> nth=0")
    page = opened.page.locator("#head-page")
    assert page.locator(".pattern-map canvas").count() == 2
    rows = page.locator("tbody tr:not(.group)").all_inner_texts()
    assert [row.split("\t") for row in rows] == [
        ["mass on the first token", "40 %", "88 %", "+48 points", "+45.2 to +50.8", "0.62", "moved"],
        ["effective rank", "8 directions", "16 directions", "+8", "exact", "0.25", "moved"],
    ]
    opened.page.keyboard.press("Escape")
    opened.until("document.getElementById('head-page').hidden")


def test_the_search_finds_heads_and_lenses(opened: Opened) -> None:
    opened.page.keyboard.press("/")
    opened.page.keyboard.type("spec")
    opened.page.keyboard.press("Enter")
    assert opened.js("location.hash") == "#lens-spectra"


def test_without_a_script_sentences_answers_and_tables_are_there(browser: Any, file: Path) -> None:
    page = Opened(browser, file, java_script_enabled=False)
    words = page.page.inner_text("main").replace("\u00a0", " ")
    for text in ("L1.H1, mass on the first token: 40 % → 88 %", "third minus first", "more than uniform", "movement"):
        assert text in words
    assert page.page.locator("#heads tbody tr").count() == 8
    page.page.close()
