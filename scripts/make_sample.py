"""Make the samples of the documentation from real runs: the report on smollm2, and why one of its heads attends.

    headscope report smollm2 --out out/smollm2
    headscope why smollm2 L18.H6 --out out/why
    python scripts/make_sample.py out/smollm2 --why out/why

The report gives `docs/smollm2.html`, two pictures of it in `docs/pictures/` and the table in `docs/smollm2.md`; that
needs Chromium and Playwright. The other run gives the picture of the circuit and the sentence in `README.md`. Either
may be left out.
"""

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import headscope as hs
from headscope.core import Run
from headscope.report.draw.figure import encode
from headscope.report.head_grid import head_grid
from headscope.report.overview import verdict

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SAMPLE, PAGE, PICTURES = DOCS / "smollm2.html", DOCS / "smollm2.md", DOCS / "pictures"
MOST_BYTES = 5_000_000
HEAD = "L11.H1"
CIRCUIT, README = PICTURES / "circuit.png", ROOT / "README.md"
SENTENCE = re.compile(r"(?<=<!-- why -->\n).*?(?=<!-- end of why -->)", re.DOTALL)
LINE = 118
TABLE = re.compile(r"(?<=<!-- lenses -->\n).*?(?=<!-- end of lenses -->)", re.DOTALL)


def main() -> None:
    """Make what the named runs give."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("run", type=Path, nargs="?", help="the run folder of `headscope report smollm2`")
    arguments.add_argument("--why", type=Path, help="the run folder of `headscope why smollm2 L18.H6`")
    folders = arguments.parse_args()
    PICTURES.mkdir(exist_ok=True)
    if folders.run is not None:
        show_report(folders.run)
    if folders.why is not None:
        show_circuit(hs.load(folders.why))


def show_circuit(run: Run) -> None:
    """The picture of the circuit, and the sentence that it shows."""
    finding = run["why"]
    key = finding.headlines[0]
    (figure,) = (figure for figure in finding.figures if figure.name == key.figure)
    CIRCUIT.write_bytes(encode(figure, "png"))
    print(f"{CIRCUIT}: {CIRCUIT.stat().st_size:,} bytes")
    words = "\n".join(textwrap.wrap(key.short, LINE)) + "\n"
    README.write_text(SENTENCE.sub(lambda _: words, README.read_text(encoding="utf-8")), encoding="utf-8")


def show_report(folder: Path) -> None:
    """Copy the report, photograph it, and write the table."""
    report = folder / "report.html"
    if report.stat().st_size > MOST_BYTES:
        sys.exit(f"{report} has {report.stat().st_size:,} bytes, and a sample at most {MOST_BYTES:,}")
    shutil.copyfile(report, SAMPLE)
    photograph(SAMPLE)
    PAGE.write_text(TABLE.sub(lambda _: table(hs.load(folder)), PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def photograph(report: Path) -> None:
    """The first screen and the page of a head, as on a laptop."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(report.as_uri())
        shoot(page, "#atlas svg, #atlas canvas", PICTURES / "report.png")
        page.goto(f"{report.as_uri()}#{HEAD}")
        shoot(page, "#head-page canvas", PICTURES / "head.png")
        browser.close()


def shoot(page: "Page", drawing: str, file: Path) -> None:
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
