"""The contents of a report: one entry per part, a search, and the figures and tables of the current section."""

from collections.abc import Iterable

from headscope.core import Finding, Run
from headscope.core.html_text import escape
from headscope.report.figure_element import slug
from headscope.report.markup import sentence
from headscope.report.section import anchor

_SEARCH = (
    '<div class="search" role="search"><input type="search" placeholder="Head, lens or quantity" autocomplete="off" '
    'aria-label="Search heads, lenses and quantities" aria-controls="search-results"><kbd>/</kbd>'
    '<ul id="search-results" role="listbox" hidden></ul></div>'
)


def contents(run: Run, parts: Iterable[tuple[str, str]]) -> str:
    """Links to the parts of the page (id and title) and to the section of each lens."""
    lenses = ((anchor(finding), finding.about.title, _inner(finding)) for finding in run.findings.values())
    return navigation(parts, lenses)


def navigation(parts: Iterable[tuple[str, str]], entries: Iterable[tuple[str, str, str]] = ()) -> str:
    """A search, links to parts (id and title), and links to lenses (id, title and what their entry holds inside)."""
    links = "".join(f"<li>{_link(id_, title)}</li>" for id_, title in parts)
    lenses = "".join(f"<li>{_link(id_, title)}{inner}</li>" for id_, title, inner in entries)
    lens_list = f'<ol class="lenses">{lenses}</ol>' if lenses else ""
    return f'<nav id="contents" aria-label="Contents">{_SEARCH}<ol class="parts">{links}</ol>{lens_list}</nav>'


def _inner(finding: Finding) -> str:
    """The figures and tables of a section, which show while it is the current one."""
    name = anchor(finding)
    links = [_link(f"{name}-{place}", figure.title) for place, figure in enumerate(finding.figures)]
    links += [_link(f"{name}-table-{slug(key)}", f"Table {key}") for key, rows in finding.tables.items() if rows.height]
    return f"<ol>{''.join(f'<li>{link}</li>' for link in links)}</ol>" if links else ""


def _link(id_: str, title: str) -> str:
    return f'<a href="#{escape(id_)}">{sentence(title)}</a>'
