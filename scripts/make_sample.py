"""Make the sample of the documentation from a real run: the report on smollm2, two pictures of it, one answer per lens.

    headscope report smollm2 --out out/smollm2
    python scripts/make_sample.py out/smollm2

Writes `docs/smollm2.html`, `docs/pictures/` and the table in `docs/smollm2.md`. Needs Chromium and Playwright.
"""

import argparse
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

import headscope as hs
from headscope.core import Run
from headscope.report.head_grid import head_grid
from headscope.report.overview import verdict

DOCS = Path(__file__).parents[1] / "docs"
SAMPLE, PAGE, PICTURES = DOCS / "smollm2.html", DOCS / "smollm2.md", DOCS / "pictures"
MOST_BYTES = 5_000_000
HEAD = "L11.H1"
TABLE = re.compile(r"(?<=<!-- lenses -->\n).*?(?=<!-- end of lenses -->)", re.DOTALL)


def main() -> None:
    """Copy the report, photograph it, and write the table."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("run", type=Path, help="the run folder of `headscope report smollm2`")
    folder = arguments.parse_args().run
    report = folder / "report.html"
    if report.stat().st_size > MOST_BYTES:
        sys.exit(f"{report} has {report.stat().st_size:,} bytes, and a sample at most {MOST_BYTES:,}")
    shutil.copyfile(report, SAMPLE)
    PICTURES.mkdir(exist_ok=True)
    photograph(SAMPLE)
    PAGE.write_text(TABLE.sub(lambda _: table(hs.load(folder)), PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def photograph(report: Path) -> None:
    """The first screen and the page of a head, as on a laptop."""
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(report.as_uri())
        shoot(page, "#atlas svg, #atlas canvas", PICTURES / "report.png")
        page.goto(f"{report.as_uri()}#{HEAD}")
        shoot(page, "#head-page canvas", PICTURES / "head.png")
        browser.close()


def shoot(page: Page, drawing: str, file: Path) -> None:
    """A picture of the screen, once a drawing is there."""
    page.wait_for_selector(drawing)
    page.wait_for_timeout(500)  # smaller drawings follow
    page.screenshot(path=file)
    print(f"{file}: {file.stat().st_size:,} bytes")


def table(run: Run) -> str:
    """One row per lens: question, answer, number, null."""
    lines = ["| lens | question | answer | number | null |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *rows(run)]) + "\n"


def rows(run: Run) -> Iterator[str]:
    """The rows, in the order of the report."""
    grid = head_grid(run)
    for name, finding in run.findings.items():
        answer = verdict(finding, grid) if finding.status == "ok" else (finding.status, finding.reason, "")
        yield f"| {' | '.join(cell.replace('|', '/') for cell in (f'`{name}`', finding.about.question, *answer))} |"


if __name__ == "__main__":
    main()
