"""The report: one self-contained page, a pure function of the Run."""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np

from headscope.core import Figure, Finding, Run
from headscope.core.html_text import escape
from headscope.core.model_summary import model_heading
from headscope.report import bundle
from headscope.report.colours import variables
from headscope.report.contents import contents
from headscope.report.figure_element import figures, slug
from headscope.report.files import write_bytes
from headscope.report.formula import with_shared_glyphs
from headscope.report.head_choice import extremes
from headscope.report.head_grid import HeadGrid, head_grid
from headscope.report.model_card import card
from headscope.report.overview import cards, front, heads_section, overview, roles, verdicts
from headscope.report.page_data import atlas_json, data_script, head_patterns, patterns_json, search_json
from headscope.report.section import anchor, section

_ICON = (
    "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'><path fill='%23440154' d='M0 0h8v8H0z'/>"
    "<path fill='%2321918c' d='M1 1h2v2H1zM5 3h2v2H5z'/><path fill='%23fde725' d='M3 5h2v2H3z'/></svg>"
)


LEDGER = "claims.html"  # the ledger of claims in the folder of a report


def render(run: Run, *, ledger: bool = False) -> str:
    """The report of a run as one HTML page that needs no network.

    The same run gives the same bytes. With `ledger` the page links to the ledger of claims in the same folder.
    """
    grid = head_grid(run)
    ends = extremes(grid)
    parts = {
        "overview": ("Overview", overview(run, grid)),
        "roles": ("Heads by role", roles(grid)),
        "ends": ("Heads at the ends", cards(grid, ends)),
        "verdicts": ("One answer per lens", verdicts(run, grid)),
        "heads": ("All heads", heads_section(grid)),
    }
    body = [
        front(run, grid),
        parts["overview"][1],
        contents(run, [*((id_, title) for id_, (title, html) in parts.items() if html), _PROVENANCE]),
        *(html for id_, (_, html) in parts.items() if id_ != "overview"),
        *(section(finding, run.model.weight_warning) for finding in run.findings.values()),
        _provenance(run),
        _footer(ledger),
        _data(run, grid, ends),
    ]
    return document(_title(run), "\n".join(part for part in body if part))


_PROVENANCE = ("provenance", "Provenance")


def _title(run: Run) -> str:
    """The name of the page: of what it is about, where that is one thing."""
    (*_, last) = (finding.about.title for finding in run.findings.values()) if run.findings else ("Attention",)
    return f"{last if len(run.findings) == 1 else 'Attention'} of {model_heading(run.model)}"


def _provenance(run: Run) -> str:
    id_, title = _PROVENANCE
    summary = f"<summary>{title}: model, text, versions, hashes</summary>"
    return f'<section id="{id_}"><details>{summary}{card(run)}</details></section>'


def _data(run: Run, grid: HeadGrid, ends: Mapping[int, object]) -> str:
    """What the script reads: all heads, their patterns, and what a search finds."""
    scripts = [data_script("lenses", search_json(run, {name: anchor(f) for name, f in run.findings.items()}))]
    if grid.columns or head_patterns(run) is not None:
        scripts.append(data_script("atlas", atlas_json(run, grid)))
    if (patterns := head_patterns(run)) is not None:
        scripts.append(data_script("patterns", patterns_json(patterns, grid, list(ends))))
    return "".join(scripts)


def document(title: str, body: str) -> str:
    """A self-contained page in the style of the report, with its own script."""
    script = bundle.script()
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><meta name="generator" content="headscope">'
        f'<title>{escape(title)}</title><link rel="icon" href="data:image/svg+xml,{_ICON}">'
        f'<style>{style()}</style></head>\n<body class="headscope page">\n'
        f"<main>\n{with_shared_glyphs(body)}</main>\n<script>{script}</script>\n</body></html>\n"
    )


def write(run: Run, path: str | Path) -> Path:
    """Write the report to `path` in one step."""
    path = Path(path)
    write_bytes(path, render(run, ledger=(path.parent / LEDGER).is_file()).encode())
    return path


def finding_html(finding: Finding) -> str:
    """A finding's section for a notebook: no script, and a style limited to it."""
    return _fragment(section(finding, script=False, prefix=_prefix(finding)))


def figure_html(figure: Figure) -> str:
    """A figure for a notebook: its drawing and its caption."""
    return _fragment(figures((figure,), _digest(figure), slug(figure.name), script=False))


def notebook_html(finding_or_figure: Finding | Figure) -> str:
    """The HTML of a finding or a figure, for `_repr_html_`."""
    if isinstance(finding_or_figure, Finding):
        return finding_html(finding_or_figure)
    return figure_html(finding_or_figure)


@cache
def style() -> str:
    """The style sheet with light and dark colours."""
    return f"{variables()}{_asset('style.css')}\n{_asset('figures.css')}"


def _footer(ledger: bool) -> str:
    theory = (
        f'<a href="{LEDGER}">The ledger of claims</a>' if ledger else f"<code>headscope claims --html {LEDGER}</code>"
    )
    return (
        f"<footer><p>The theory behind these lenses, statement by statement and executed: {theory}.</p>"
        "<p>Every figure can be saved here as SVG or PNG; "
        "<code>headscope figures RUN --format pdf</code> writes all figures of a stored run as PDF. "
        "The run folder holds every table as a parquet file. "
        "This page is self-contained: it asks nothing of the network.</p></footer>"
    )


def _policy(script: str) -> str:
    """A policy that allows only this script and fetches nothing.

    Images are those that the script makes to save PNGs.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _fragment(body: str) -> str:
    return f'<div class="headscope"><style>{style()}</style>{body}</div>'


def _prefix(finding: Finding) -> str:
    return f"{_digest((finding.lens, finding.headlines, finding.figures))}-"


def _digest(content: object) -> str:
    """The beginning of ids that no other output of a notebook has."""
    return f"hs{hashlib.sha256(_everything(content)).hexdigest()[:12]}"


def _everything(node: object) -> bytes:
    """All plain data as bytes.

    `repr` would leave out the middle of arrays.
    """
    if isinstance(node, np.ndarray):
        return node.tobytes()
    if is_dataclass(node):
        return _everything(tuple(vars(node).items()))
    return b"\0".join(map(_everything, node)) if isinstance(node, tuple) else repr(node).encode()


@cache
def _asset(name: str) -> str:
    return resources.files("headscope.report").joinpath(name).read_text(encoding="utf-8").strip()
