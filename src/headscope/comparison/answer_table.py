"""The answers of every lens about every run, side by side: one row per lens."""

from headscope.comparison.circumstances import letter
from headscope.comparison.comparison import Comparison
from headscope.core import Finding, Run
from headscope.core.html_text import escape
from headscope.report.figure_element import slug
from headscope.report.head_grid import HeadGrid, head_grid
from headscope.report.markup import sentence
from headscope.report.overview import unbroken, verdict


def answers_anchor(lens: str) -> str:
    """The id of the row of a lens."""
    return f"lens-{slug(lens)}"


def answer_table(comparison: Comparison) -> str:
    """Question, then the answer about each run with its number and null; sentences with intervals folded."""
    names = [f"{letter(index)}: {label}" for index, label in enumerate(comparison.labels)]
    head = "".join(f"<th scope=col>{escape(name)}</th>" for name in ("Question", *names))
    grids = [head_grid(run) for run in comparison.runs]
    rows = "".join(
        f'<tr id="{answers_anchor(lens)}"><th scope="row">{_question(comparison.runs[0].findings[lens])}</th>'
        + "".join(
            f'<td data-name="{escape(name)}">{_answer(run, lens, grid, usual)}</td>'
            for run, grid, name in zip(comparison.runs, grids, names, strict=True)
        )
        + "</tr>"
        for lens in comparison.lenses
        for usual in (verdict(comparison.runs[0].findings[lens], grids[0])[0],)
    )
    return (
        '<section id="verdicts"><h2>One answer per lens</h2><div class="scroll"><table class="answers-of-runs">'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _question(finding: Finding) -> str:
    return f'{sentence(finding.about.question)} <span class="lens">{escape(finding.lens)}</span>'


def _answer(run: Run, lens: str, grid: HeadGrid, usual: str) -> str:
    """The cell of one run; an answer in other words than the first run's is bold."""
    finding = run.findings[lens]
    if finding.status != "ok":
        return f'<span class="quiet">{escape(finding.status)}: {escape(finding.reason or "no reason was given")}</span>'
    answer, value, null = verdict(finding, grid)
    words = unbroken(sentence(answer))
    numbers = (
        f'<span class="number">{unbroken(escape(f"{value}; null {null}" if null else value))}</span>' if value else ""
    )
    sentences = "".join(f"<p>{sentence(headline.full)}</p>" for headline in finding.headlines)
    details = f"<details><summary>In full</summary><div>{sentences}</div></details>" if sentences else ""
    return f"{f'<b>{words}</b>' if answer != usual else words}{numbers}{details}"
