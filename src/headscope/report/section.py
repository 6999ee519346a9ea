"""The section of one finding: the answer and its figure first, then the rest, then what explains it."""

from collections.abc import Iterator, Mapping

from headscope.core import About, Finding, Headline
from headscope.core.html_text import escape
from headscope.report.figure_element import figure_element, slug
from headscope.report.formula import formula
from headscope.report.markup import paragraphs, sentence
from headscope.report.table import table


def anchor(finding: Finding) -> str:
    """The id of a finding's section."""
    return f"lens-{slug(finding.lens)}"


def figure_anchor(finding: Finding, name: str) -> str:
    """The id of a figure of a finding, by its name; of its key figure where there is none of that name."""
    places = {figure.name: place for place, figure in enumerate(finding.figures)}
    return f"{anchor(finding)}-{places.get(name, key_figure(finding))}"


def key_figure(finding: Finding) -> int:
    """The place of the figure that shows the answer, or the first."""
    names = [figure.name for figure in finding.figures]
    headline = answering(finding)
    return names.index(headline.figure) if headline is not None and headline.figure in names else 0


def answering(finding: Finding) -> Headline | None:
    """The headline that answers the question: the first with an answer in a few words, or the first."""
    return next((headline for headline in finding.headlines if headline.answer), next(iter(finding.headlines), None))


def section(finding: Finding, weight_warning: str = "", script: bool = True, prefix: str = "") -> str:
    """A finding as a section.

    The page says `weight_warning` once for all sections, so that no section repeats it.
    """
    about, name = finding.about, prefix + anchor(finding)
    key, further_figures = _figures(finding, name, script)
    parts = [
        f'<h2>{escape(about.title)} <span class="lens">{escape(finding.lens)}</span>{_copy_link(name, script)}</h2>',
        f'<p class="question">{sentence(about.question)}</p>',
        _status(finding),
        f'<div class="answer">{_answers(finding)}{key}</div>',
        "".join(f'<p class="warning">{sentence(text)}</p>' for text in finding.warnings if text != weight_warning),
        further_figures,
        "".join(_tables(finding, name, script)),
        _explanations(finding),
    ]
    return f'<section id="{name}" class="lens-section {finding.status.replace(" ", "-")}">{"".join(parts)}</section>'


def _copy_link(name: str, script: bool) -> str:
    return f'<a class="copy" href="#{name}" aria-label="Link to this section">#</a>' if script else ""


def _status(finding: Finding) -> str:
    if finding.status == "ok":
        return ""
    summary = "Not applicable to this model" if finding.status == "not applicable" else "This lens failed"
    return _note(summary, finding.reason or "No reason was given.")


def _note(summary: str, reason: object) -> str:
    return f'<div class="status" role="note"><b>{escape(summary)}.</b> {escape(reason)}</div>'


def _answers(finding: Finding) -> str:
    """The sentences in full, each with its effect."""
    items = (
        f"<li><p>{sentence(headline.full)}</p>"
        f"{'' if headline.effect is None else f'<small>effect {headline.effect:.2f}</small>'}</li>"
        for headline in finding.headlines
    )
    return f'<ul class="answers">{"".join(items)}</ul>' if finding.headlines else ""


def _figures(finding: Finding, name: str, script: bool) -> tuple[str, str]:
    """The key figure, and the others side by side."""
    key, file = key_figure(finding), slug(finding.lens)
    elements = [
        figure_element(figure, f"{name}-{place}", f"{file}-{slug(figure.name)}", script)
        for place, figure in enumerate(finding.figures)
    ]
    if not elements:
        return "", ""
    further_elements = "".join(element for place, element in enumerate(elements) if place != key)
    further_figures = f'<div class="figures">{further_elements}</div>' if further_elements else ""
    return f'<div class="figures key">{elements[key]}</div>', further_figures


def _tables(finding: Finding, name: str, script: bool) -> Iterator[str]:
    for key, rows in finding.tables.items():
        if not rows.height:
            continue
        try:
            yield table(
                key,
                rows,
                finding.about.columns,
                quantities=finding.quantities,
                lens=finding.lens,
                id_=f"{name}-table-{slug(key)}",
                script=script,
            )
        except Exception as error:  # noqa: BLE001 - one broken table must not cost the reader the rest of the page
            yield _note(f"The table {key} could not be shown", f"{type(error).__name__}: {error}")


def _explanations(finding: Finding) -> str:
    """What explains the numbers, folded; on paper it is open."""
    about = finding.about
    parts = (
        ("How to read it", paragraphs(about.reading)),
        ("Definition", paragraphs(about.definition) + _formulas(about)),
        ("Method", _method(finding)),
        ("Columns of the tables", _glossary(about.columns, finding)),
        ("Reference", paragraphs(about.reference)),
    )
    details = (f"<details><summary>{title}</summary><div>{body}</div></details>" for title, body in parts if body)
    return f'<div class="explanations">{"".join(details)}</div>'


def _formulas(about: About) -> str:
    return "".join(formula(tex, display=True) for tex in about.formulas)


def _method(finding: Finding) -> str:
    params = ", ".join(f"{key} = {value}" for key, value in finding.params.items())
    return paragraphs(finding.method) + (f"<p>Parameters: <code>{escape(params)}</code></p>" if params else "")


def _glossary(glossary: Mapping[str, str], finding: Finding) -> str:
    columns = {column for frame in finding.tables.values() for column in frame.columns}
    entries = "".join(
        f"<dt>{escape(names)}</dt><dd>{sentence(meaning)}</dd>"
        for names, meaning in glossary.items()
        if any(name.strip() in columns for name in names.split(","))
    )
    return f'<dl class="glossary">{entries}</dl>' if entries else ""
