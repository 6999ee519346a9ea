"""The ledger as a page: every claim with its verdict, its numbers and its correction; nothing leaks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headscope.core import Comparison, Curves, Entry, Evidence, Ledger, Series, Source, Trend
from headscope.report.ledger import ledger_html, write_ledger
from tests.report.opened_page import Opened

HOSTILE = "</script><script>alert(1)</script> & $x^2$"
CURVE = Curves("c", "A curve", "Its caption.", "x", "y", (Series("s", np.arange(3.0), np.arange(3.0)),))
RIGHT, WRONG = Comparison("a mean", 1.0, 1.001, 0.01), Comparison("a mean", 2.0, 1.001, 0.01)
HOLDS = Entry(("W-1.1",), Source("Wertich", "A work", "1.1"), HOSTILE, r"E[x] = \mu", "holds", "One. Two.",
              evidence=Evidence((RIGHT,), figures=(CURVE,)))  # fmt: skip
LEDGER = Ledger(
    (
        HOLDS,
        replace(HOLDS, ids=("W-1.2", "W-1.3"), verdict="refuted", slip=True, correction="A factor.",
                corrected_formula=r"E[x] = 2 \mu", evidence=Evidence((WRONG,), (RIGHT,))),
        replace(HOLDS, ids=("C-1",), source=Source("Conti", "Another", "2"), verdict="approximate",
                evidence=Evidence((WRONG,), (RIGHT,), Trend("error", "n", (1.0, 10.0, 100.0), (0.1, 0.01, 0.001),
                                                           (0.0,) * 3, -1.0))),
        replace(HOLDS, ids=("B-1",), source=Source("Bukatin", "A talk", "x"), verdict="needs a model", evidence=None,
                lens="focus", reason="a model is needed"),
        replace(HOLDS, ids=("B-2",), source=Source("Bukatin", "A talk", "x"), verdict="refuted", model="tiny",
                evidence=Evidence((replace(WRONG, relation="<", predicted=0.5),)), related=("B-1",)),
        replace(HOLDS, ids=("B-3",), source=Source("Bukatin", "A talk", "x"), verdict="true but empty",
                evidence=Evidence((RIGHT,), null=(RIGHT,))),
        replace(HOLDS, ids=("B-4",), source=Source("Bukatin", "A talk", "x"), verdict="open question",
                correction="Yes.", evidence=Evidence(answer=(RIGHT,))),
    ),
    seed=0,
)  # fmt: skip


def test_every_claim_is_there_with_what_was_measured() -> None:
    page = ledger_html(LEDGER)
    for text in ("W-1.1", "W-1.2 W-1.3", "C-1", "B-1", "A factor.", "as corrected", "1.00", "power", "focus",
                 "refuted on tiny", "true but empty", "the null", "open question", "<b>Answer.</b>", "our answer",
                 'href="#B-1"', "&lt; 0.5"):  # fmt: skip
        assert text in page, text
    assert "alert(1)</script>" not in page
    assert "8 checkable statements" in page
    assert page == ledger_html(LEDGER)


def test_it_is_written_whole(tmp_path: Path) -> None:
    assert write_ledger(LEDGER, tmp_path / "ledger.html").read_text(encoding="utf-8") == ledger_html(LEDGER)


@pytest.mark.browser
def test_filters_in_a_browser(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, write_ledger(LEDGER, tmp_path / "ledger.html"))
    shown = "[...document.querySelectorAll('.claim')].filter((c) => !c.hidden).map((c) => c.id)"
    assert opened.js(f"() => {shown}") == ["W-1-1", "W-1-2", "C-1", "B-1", "B-2", "B-3", "B-4"]
    opened.page.select_option("select[name=verdict]", "refuted")
    assert opened.js(f"() => {shown}") == ["W-1-2"]
    opened.page.uncheck("input[name=slips]")
    assert opened.js(f"() => {shown}") == []
    opened.page.check("input[name=slips]")
    opened.page.select_option("select[name=verdict]", "")
    opened.page.select_option("select[name=document]", "Conti: Another")
    assert opened.js(f"() => {shown}") == ["C-1"]
    opened.page.select_option("select[name=document]", "")
    opened.page.fill("input[name=words]", "factor")
    assert opened.js(f"() => {shown}") == ["W-1-2"]
    assert opened.complaints == []
    assert len(opened.requests) == 1  # the page itself
    opened.page.close()
