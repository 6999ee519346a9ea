"""Make the samples of the documentation from real runs of smollm2.

    headscope report smollm2 --out out/smollm2
    headscope why smollm2 L18.H6 --out out/why
    headscope intervene smollm2 --scale 1/4 1/2 2 4 --out out/scaled
    headscope study fewshot smollm2 --category animals --word Ant --shots 3 --words 24 --clues 4 \\
        --alpha 1/4,1/2,2,4 --out out/ant
    python scripts/make_sample.py out/smollm2 --why out/why --intervene out/scaled --fewshot out/ant

The report gives `docs/smollm2.html`, two pictures of it in `docs/pictures/` and the table in `docs/smollm2.md`; that
needs Chromium and Playwright. `why` gives the picture of the circuit and the sentence in `README.md`; the two others
give their tables in `docs/smollm2.md`. Any of them may be left out.
"""

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

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
LINE = 118
SHOTS = (0, 1, 3, 5, 8)
MEASURES = {
    "log_probability": "log-probability of the reference clue, nats per token",
    "exchanged": "the same clues, each behind a wrong word, in the shots too",
    "word_worth": "what knowing the word is worth",
}


def main() -> None:
    """Make what the named runs give."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("run", type=Path, nargs="?", help="the run folder of `headscope report smollm2`")
    arguments.add_argument("--why", type=Path, help="the run folder of `headscope why smollm2 L18.H6`")
    arguments.add_argument("--intervene", type=Path, help="the run folder of `headscope intervene smollm2 --scale …`")
    arguments.add_argument("--fewshot", type=Path, help="the run folder of `headscope study fewshot smollm2 …`")
    folders = arguments.parse_args()
    PICTURES.mkdir(exist_ok=True)
    if folders.run is not None:
        show_report(folders.run)
    if folders.why is not None:
        show_circuit(hs.load(folders.why))
    if folders.intervene is not None:
        write_between(PAGE, "interventions", interventions(hs.load(folders.intervene)))
    if folders.fewshot is not None:
        write_between(PAGE, "shots", shots(hs.load(folders.fewshot)))


def write_between(page: Path, name: str, lines: Iterable[str]) -> None:
    """Put lines between two comments of a page: `<!-- name -->` and `<!-- end of name -->`."""
    place = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end of {name} -->)", re.DOTALL)
    written, times = place.subn(lambda _: "".join(f"{line}\n" for line in lines), page.read_text(encoding="utf-8"))
    if times != 1:
        sys.exit(f"{page} has {times} places called {name}, and needs one")
    page.write_text(written, encoding="utf-8")


def interventions(run: Run) -> Iterator[str]:
    """A row for each factor, from the smallest to the largest; the original has factor 1."""
    rows = {(row["change"], row["which"]): row for row in run["intervene"].table.to_dicts()}
    changes = [change for change, which in rows if which == "change"]
    above = [change for change in changes if factor(change) > 1]
    yield (
        "| W_Q and W_K times α | perplexity | over the original's | KL, nats | the controls' perplexity (range) | "
        "entropy of attention | mass on self | on the first token |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for change in [*(change for change in changes if change not in above), "original", *above]:
        row = rows[change, "original" if change == "original" else "change"]
        cells = [f"{row['perplexity']:,.3g}" if row["perplexity"] < 1000 else f"{row['perplexity']:,.0f}"]
        if change == "original":
            cells += ["", "", ""]
        else:
            control = rows[change, "control"]
            least, most = control["perplexity_least"], control["perplexity_most"]
            cells += [
                f"{row['ratio']:.3g} [{row['ratio_low']:.3g}, {row['ratio_high']:.3g}]",
                f"{row['kl']:.1f}",
                f"{control['perplexity']:,.0f} ({least:,.0f} to {most:,.0f})",
            ]
        cells += [f"{100 * row['entropy_share']:.0f} %", f"{100 * row['self']:.1f} %", f"{100 * row['first']:.1f} %"]
        name = "1 (original)" if change == "original" else change.removeprefix("scale ")
        yield f"| {' | '.join([name, *cells])} |"


def factor(change: str) -> Fraction:
    """`scale 1/4` is a quarter."""
    return Fraction(change.removeprefix("scale "))


def shots(run: Run) -> Iterator[str]:
    """A column for each number of shots."""
    table = run["fewshot"].tables["shots"].filter(pl.col("shots").is_in(SHOTS)).to_dicts()
    yield f"| shots before the word | {' | '.join(str(row['shots']) for row in table)} |"
    yield "|---" * (len(table) + 1) + "|"
    for column, words in MEASURES.items():
        cells = [f"{row[column]:.2f}" for row in table]
        cells[-1] += f" [{table[-1][f'{column}_low']:.2f}, {table[-1][f'{column}_high']:.2f}]"
        yield f"| {words} | {' | '.join(cells)} |".replace(" -", " −").replace("[-", "[−")


def show_circuit(run: Run) -> None:
    """The picture of the circuit, and the sentence that it shows."""
    finding = run["why"]
    key = finding.headlines[0]
    (figure,) = (figure for figure in finding.figures if figure.name == key.figure)
    CIRCUIT.write_bytes(encode(figure, "png"))
    print(f"{CIRCUIT}: {CIRCUIT.stat().st_size:,} bytes")
    write_between(README, "why", textwrap.wrap(key.short, LINE))


def show_report(folder: Path) -> None:
    """Copy the report, photograph it, and write the table."""
    report = folder / "report.html"
    if report.stat().st_size > MOST_BYTES:
        sys.exit(f"{report} has {report.stat().st_size:,} bytes, and a sample at most {MOST_BYTES:,}")
    shutil.copyfile(report, SAMPLE)
    photograph(SAMPLE)
    write_between(PAGE, "lenses", answers(hs.load(folder)))


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


def answers(run: Run) -> Iterator[str]:
    """One row per lens, in the order of the report: question, answer, number, null."""
    yield "| lens | question | answer | number | null |"
    yield "|---|---|---|---|---|"
    grid = head_grid(run)
    for name, finding in run.findings.items():
        answer = verdict(finding, grid) if finding.status == "ok" else (finding.status, finding.reason, "")
        yield f"| {' | '.join(cell.replace('|', '/') for cell in (f'`{name}`', finding.about.question, *answer))} |"


if __name__ == "__main__":
    main()
