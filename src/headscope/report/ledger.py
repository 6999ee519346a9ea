"""The page of the ledger of claims: statements, formulas, numbers, verdicts."""

from collections.abc import Iterable
from pathlib import Path

from headscope.core import MEANINGS, Comparison, Entry, Evidence, Ledger
from headscope.core.html_text import escape
from headscope.core.numbers import number
from headscope.report.figure_element import figures, slug
from headscope.report.files import write_bytes
from headscope.report.formula import formula
from headscope.report.markup import paragraphs, sentence
from headscope.report.page import document


def ledger_html(ledger: Ledger) -> str:
    """The page as HTML; the same ledger gives the same bytes."""
    title = "The theory of attention, checked"
    body = [_front(ledger, title), _contents(ledger), _filters(ledger)]
    work = ""
    for entry in ledger.entries:
        if entry.source.work != work:
            work = entry.source.work
            body.append(f'<h2 class="work">{escape(entry.source.author)}: {escape(work)}</h2>')
        body.append(_claim(entry))
    return document(title, "\n".join(body))


def write_ledger(ledger: Ledger, path: str | Path) -> Path:
    """Write the page in one step."""
    path = Path(path)
    write_bytes(path, ledger_html(ledger).encode())
    return path


def _front(ledger: Ledger, title: str) -> str:
    total = sum(ledger.counts().values())
    slips = sum(len(entry.ids) for entry in ledger.entries if entry.slip)
    kinds = {entry.reading: entry.verdict for entry in ledger.entries}
    rows = "".join(
        f"<dt>{escape(reading)}</dt><dd><b>{count}</b> {escape(MEANINGS[kinds[reading]])}"
        f"{f' ({slips} of them slips: a sign, a factor, an index)' if reading == 'refuted' and slips else ''}</dd>"
        for reading, count in ledger.counts().items()
    )
    return (
        f'<header><p class="kicker">headscope ledger of claims</p><h1>{escape(title)}</h1>'
        f"<p>{total} checkable statements about attention, each executed. A verdict is computed from the numbers below "
        f"it by one written rule and never by hand; sampled numbers carry their standard error, and a prediction is "
        f"contradicted beyond 5 of them. Seed {ledger.seed}.</p>"
        f'<dl class="facts">{rows}</dl></header>'
    )


def _contents(ledger: Ledger) -> str:
    """A link to the first claim of every chapter, with its numbers of claims.

    The second number counts the refuted ones.
    """
    chapters: dict[tuple[str, str], list[Entry]] = {}
    for entry in ledger.entries:
        chapter = ".".join(entry.source.section.split(".")[:2]).split("-")[0]
        chapters.setdefault((entry.source.author, chapter), []).append(entry)
    items = []
    for (author, chapter), entries in chapters.items():
        refuted = sum(len(entry.ids) for entry in entries if entry.verdict == "refuted")
        claim_counts = f"{sum(len(entry.ids) for entry in entries)}{f', {refuted} refuted' if refuted else ''}"
        link = f'<a href="#{slug(entries[0].ids[0])}">{escape(author)} {escape(chapter)}</a>'
        items.append(f"<li>{link} <small>{claim_counts}</small></li>")
    return f'<nav aria-label="Contents"><h2>Contents</h2><ol>{"".join(items)}</ol></nav>'


def _filters(ledger: Ledger) -> str:
    works = dict.fromkeys(_document(entry) for entry in ledger.entries)
    verdicts = list(ledger.counts())
    return (
        '<p class="tools filters" role="group" aria-label="Filter the claims">'
        f"{_choice('document', works)}{_choice('verdict', verdicts)}"
        '<label><input type="checkbox" name="slips" checked> with slips</label>'
        '<input type="search" name="words" placeholder="id or words" aria-label="Search the claims">'
        '<span class="rest" aria-live="polite"></span></p>'
    )


def _document(entry: Entry) -> str:
    """Author and title, short enough for a menu."""
    title = entry.source.work
    return f"{entry.source.author}: {title if len(title) <= 48 else title[:47] + '…'}"


def _choice(name: str, options: Iterable[str]) -> str:
    items = "".join(f"<option>{escape(option)}</option>" for option in options)
    return f'<label>{name} <select name="{name}"><option value="">all</option>{items}</select></label>'


def _claim(entry: Entry) -> str:
    name = slug(entry.ids[0])
    kind = entry.verdict.replace(" ", "-")
    also = "".join(f'<span id="{slug(other)}"></span>' for other in entry.ids[1:])
    slip = ' <span class="slip">slip</span>' if entry.slip else ""
    parts = [
        f'<h3><code>{escape(" ".join(entry.ids))}</code> <span class="verdict {kind}">{escape(entry.reading)}</span>'
        f"{slip} <small>section {escape(entry.source.section)}</small></h3>",
        f"<p>{sentence(entry.statement)}</p>",
        formula(entry.formula, display=True) if entry.formula else "",
        _correction(entry),
        _waiting(entry),
        f'<div class="lesson">{paragraphs(entry.lesson)}{_related(entry)}</div>',
        _numbers(entry),
        figures(entry.figures, name, f"claim-{name}"),
    ]
    return (
        f'<section class="claim {kind}" id="{name}" data-document="{escape(_document(entry))}" '
        f'data-verdict="{escape(entry.reading)}"{" data-slip" if entry.slip else ""}>{also}{"".join(parts)}</section>'
    )


def _correction(entry: Entry) -> str:
    if not entry.correction and not entry.corrected_formula:
        return ""
    typeset = formula(entry.corrected_formula, display=True) if entry.corrected_formula else ""
    head = "Answer" if entry.verdict == "open question" else "Corrected"
    return f'<div class="correction"><b>{head}.</b> {sentence(entry.correction)}{typeset}</div>'


def _waiting(entry: Entry) -> str:
    if entry.verdict == "needs a model":
        where = f" (measured on {escape(entry.model)})" if entry.model else ""
        by = f"Settled by <code>{escape(entry.lens)}</code>" if entry.lens else "Needed"
        return f'<p class="status">{by}: {sentence(entry.reason)}{where}</p>'
    return f'<p class="status">{sentence(entry.reason)}</p>' if entry.verdict == "not testable" else ""


_GROUPS = {"stated": "as stated", "corrected": "as corrected", "null": "the null", "answer": "our answer"}
_SIDES = {">": "> ", "<": "< "}


def _related(entry: Entry) -> str:
    links = ", ".join(f'<a href="#{slug(name)}">{escape(name)}</a>' for name in entry.related)
    return f"<p>See also {links}.</p>" if links else ""


def _trend(evidence: Evidence) -> str:
    if evidence.trend is None:
        return ""
    t = evidence.trend
    steps = ", ".join(f"{number(e)} at {number(v)}" for v, e in zip(t.values, t.errors, strict=True))
    return (
        f"<p>{sentence(t.what)}: {escape(steps)} ({escape(t.parameter)}). It goes like {escape(t.parameter)} to the "
        f"power {number(round(t.fitted, 2))} ± {number(round(t.uncertainty, 2))}; the correction states "
        f"{number(round(t.order, 2))}.</p>"
    )


def _numbers(entry: Entry) -> str:
    if entry.evidence is None:
        return ""
    rows = [_row(c, _GROUPS[group]) for group, comparisons in entry.evidence.groups for c in comparisons]
    trend = _trend(entry.evidence)
    head = "".join(
        f'<th{cls}>{name}</th>'
        for name, cls in (("formula", ""), ("what", ""), ("predicted", ' class="n"'), ("measured", ' class="n"'),
                          ("± error", ' class="n"'), ("agrees", ""))
    )  # fmt: skip
    return (
        f'<details><summary>The numbers</summary><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>{trend}</details>"
    )


def _row(c: Comparison, formula: str) -> str:
    texts = (_SIDES.get(c.relation, "") + number(c.predicted), number(c.measured), number(c.error))
    cells = "".join(f'<td class="n">{escape(text)}</td>' for text in texts)
    agrees = "yes" if c.agrees else "no" if c.contradicts else "open"
    return f"<tr><td>{formula}</td><td>{sentence(c.what)}</td>{cells}<td>{agrees}</td></tr>"
