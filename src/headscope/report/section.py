"""The section of one finding: prose, figures, tables, method, warnings."""

from headscope.core import About, Finding
from headscope.core.html_text import escape
from headscope.report.figure_element import figures, slug
from headscope.report.formula import formula
from headscope.report.markup import paragraphs, sentence
from headscope.report.table import table


def anchor(finding: Finding) -> str:
    """The id of a finding's section."""
    return f"lens-{slug(finding.lens)}"


def section(finding: Finding, warning: str = "", script: bool = True, prefix: str = "", conclusions: str = "") -> str:
    """A finding as a section.

    `warning` must appear with every number of this model. `conclusions` follow the question.
    """
    about = finding.about
    name = prefix + anchor(finding)
    parts = [
        f'<h2>{escape(about.title)} <span class="lens">{escape(finding.lens)}</span></h2>',
        f'<p class="question">{sentence(about.question)}</p>',
        _status(finding),
        conclusions,
        _part("Definition", paragraphs(about.definition) + _formulas(about)),
        _part("How to read it", paragraphs(about.reading)),
        "".join(f'<p class="warning">{sentence(text)}</p>' for text in _warnings(finding, warning)),
        figures(finding.figures, name, slug(finding.lens), script),
        "".join(_table(finding, key, script) for key, rows in finding.tables.items() if rows.height),
        _part("Method", _method(finding)),
        _part("Reference", paragraphs(about.reference)),
    ]  # fmt: skip
    return f'<section id="{name}" class="{finding.status.replace(" ", "-")}">{"".join(parts)}</section>'


def _status(finding: Finding) -> str:
    if finding.status == "ok":
        return ""
    summary = "Not applicable to this model" if finding.status == "not applicable" else "This lens failed"
    return _note(summary, finding.reason or "No reason was given.")


def _note(summary: str, reason: object) -> str:
    return f'<div class="status" role="note"><b>{escape(summary)}.</b> {escape(reason)}</div>'


def _formulas(about: About) -> str:
    return "".join(formula(tex, display=True) for tex in about.formulas)


def _part(title: str, body: str) -> str:
    return f'<div class="part"><h3>{title}</h3><div>{body}</div></div>' if body else ""


def _warnings(finding: Finding, warning: str) -> tuple[str, ...]:
    missing = warning and finding.status == "ok" and warning not in finding.warnings
    return (warning, *finding.warnings) if missing else finding.warnings


def _method(finding: Finding) -> str:
    params = ", ".join(f"{key} = {value}" for key, value in finding.params.items())
    return paragraphs(finding.method) + (f"<p>Parameters: <code>{escape(params)}</code></p>" if params else "")


def _table(finding: Finding, key: str, script: bool) -> str:
    try:
        return table(key, finding.tables[key], finding.about.columns, script)
    except Exception as error:  # noqa: BLE001 - as above
        return _note(f"The table {key} could not be shown", f"{type(error).__name__}: {error}")
