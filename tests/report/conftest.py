"""The example run and its page, made once, and the browser that opens it."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headscope.core import Run
from headscope.report.page import render
from tests.report.example import example_run
from tests.report.opened_page import Opened

QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-default-apps", "--no-first-run", "--no-default-browser-check",
)  # fmt: skip


@pytest.fixture(scope="session")
def run() -> Run:
    return example_run()


@pytest.fixture(scope="session")
def text(run: Run) -> str:
    return render(run)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The system's Chromium; without one the tests are skipped."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(names)} is on the path")
    with sync_api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=path, args=list(QUIET), timeout=0)
        except sync_api.Error as error:
            pytest.skip(f"{path} does not start: {error}")
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(text: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.fixture
def opened(browser: Any, report: Path) -> Iterator[Opened]:
    """The report, which must stay silent whatever the test does with it."""
    page = Opened(browser, report)
    yield page
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith(("blob:", "data:"))] == [report.as_uri()]
    page.page.close()
