"""The first screen: the model in one line, the atlas of its heads, the findings with the largest effects.

Then the heads that have a role by name, the heads at the ends of quantities, and one row for each lens.
"""

import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote

import numpy as np

from headscope.core import Finding, Headline, Run
from headscope.core.html_text import escape
from headscope.core.model_summary import amount, model_heading
from headscope.core.numbers import MINUS, count, counted, number
from headscope.report.head_choice import Extreme, RoleGroup, habits, role_groups, with_unit
from headscope.report.head_grid import HeadColumn, HeadGrid
from headscope.report.markup import sentence
from headscope.report.section import anchor, answering, figure_anchor
from headscope.report.table import table_element
from headscope.report.wide_table import WideColumn, WideTable

MOST_FINDINGS = 5
_MOST_NAMES = 2  # ends that a card names
_MOST_HEADS = 8  # of a role that are named
_ANSWERS = ("Answer", "Number", "Null")
_MINUS = re.compile(r"(?<![\w)])-(?=\d)")


def front(run: Run, grid: HeadGrid) -> str:
    """The model in one line, and what its heads do."""
    model = run.model
    text = f", on {run.text.name} ({count(run.text.n_tokens)} tokens)" if run.text else ""
    line = f"{model.architecture}, {model.kind}, {amount(model.n_parameters)} parameters{text}"
    what_heads_do = ", ".join(habits(grid))
    size = grid_size(grid)
    summary = f"{size}; {what_heads_do}" if size and what_heads_do else size or what_heads_do
    warning = f'<p class="warning">{escape(model.weight_warning)}</p>' if model.weight_warning else ""
    lead = f'<p class="lead">{escape(summary)}.</p>' if summary else ""
    details = f'<p class="model-line">{escape(line)}</p>{warning}'
    return f'<header id="top"><h1>{escape(model_heading(model))}</h1>{lead}{details}</header>'


def grid_size(grid: HeadGrid) -> str:
    """`30 layers × 9 heads`; with several stacks each of them by name."""
    sizes = [f"{counted(len(panel.layers), 'layer')} × {counted(panel.columns, 'head')}" for panel in grid.panels]
    if len(sizes) <= 1:
        return "".join(sizes)
    names = [panel.title.lower() for panel in grid.panels]
    return ", ".join(
        f"{name} {size}" if not place or size != sizes[place - 1] else f"{name} the same"
        for place, (name, size) in enumerate(zip(names, sizes, strict=True))
    )


def overview(run: Run, grid: HeadGrid) -> str:
    """The atlas and the findings side by side."""
    return f'<section id="overview"><div class="overview">{_atlas(grid)}{_top_findings(run)}</div></section>'


def _atlas(grid: HeadGrid) -> str:
    """The place of the atlas, which the script draws."""
    if not grid.columns:
        return ""
    problems = "".join(f'<p class="warning">Not shown: {escape(problem)}</p>' for problem in grid.problems)
    return (
        '<div id="atlas"><h2>Atlas of heads</h2>'
        f'<p class="no-script">{len(grid.heads)} heads with {len(grid.columns)} quantities each. This page draws them '
        f"where scripts are allowed; the tables below hold the numbers.</p>{problems}</div>"
    )


def _top_findings(run: Run) -> str:
    items = [
        f'<li><a href="#{anchor(finding)}"{_spark(finding, headline)}>'
        f'<span class="says">{unbroken(sentence(headline.short))}</span>'
        f'<span class="from">{escape(finding.lens)}{_effect(headline)}</span></a></li>'
        for finding, headline in run.largest_effects()[:MOST_FINDINGS]
    ]
    body = f'<ol class="top-findings">{"".join(items)}</ol>' if items else "<p>No lens has an answer.</p>"
    return f'<div id="findings"><h2>Largest effects</h2>{body}</div>'


def unbroken(html: str) -> str:
    """A number and its percent sign stay on one line."""
    return html.replace(" %", "\u00a0%")


def _spark(finding: Finding, headline: Headline) -> str:
    return f' data-spark="{figure_anchor(finding, headline.figure)}"' if finding.figures else ""


def _effect(headline: Headline) -> str:
    return "" if headline.effect is None else f", effect {headline.effect:.2f}"


def roles(grid: HeadGrid) -> str:
    """A line for each role: how many heads have it, and those with the most of it by name."""
    groups = role_groups(grid)
    if not groups:
        return ""
    items = "".join(f"<li>{_role_line(group, grid)}</li>" for group in groups)
    return f'<section id="roles"><h2>Heads by role</h2><ul class="roles">{items}</ul></section>'


def _role_line(group: RoleGroup, grid: HeadGrid) -> str:
    """The count leads to the atlas with these heads alone, each name to the page of its head."""
    column = group.column
    names = ", ".join(_head_link(column, head, grid) for head in group.heads[:_MOST_HEADS])
    left = len(group.heads) - _MOST_HEADS
    more = f", and {count(left)} more" if left > 0 else ""
    address = f"#overview?colour={quote(column.key)}&role={quote(column.quantity.role)}"
    tip = f"{column.quantity.label} ({column.lens})"
    return f'<a class="role" href="{escape(address)}" title="{escape(tip)}">{escape(group.name)}</a>: {names}{more}'


def _head_link(column: HeadColumn, head: int, grid: HeadGrid) -> str:
    label = escape(grid.heads[head].label)
    value = unbroken(escape(with_unit(float(column.values[head]), column.quantity.unit)))
    return f'<span><a href="#{label}">{label}</a> <i>{value}</i></span>'


def cards(grid: HeadGrid, extremes: Mapping[int, Sequence[Extreme]]) -> str:
    """The heads at the ends of quantities; the script draws their patterns."""
    if not extremes:
        return ""
    items = [
        f'<li><a class="card" href="#{escape(grid.heads[place].label)}" data-head="{place}">'
        f'<span class="ends">{"<br>".join(_end(end) for end in ends[:_MOST_NAMES])}</span>'
        f"<b>{escape(grid.heads[place].label)}</b></a></li>"
        for place, ends in extremes.items()
    ]
    return (
        '<section id="ends"><h2>Heads at the ends</h2>'
        f'<ul class="cards">{"".join(items)}</ul></section>'
    )  # fmt: skip


def _end(extreme: Extreme) -> str:
    tip = escape(f"{extreme.column.quantity.label} ({extreme.column.lens})")
    return f'<span title="{tip}">{escape(extreme.name)} <i>{escape(extreme.value)}</i></span>'


def verdicts(run: Run, grid: HeadGrid) -> str:
    """One row for each lens: question, answer, number, null."""
    if not run.findings:
        return ""
    rows = "".join(
        f'<tr class="{finding.status.replace(" ", "-")}"><th scope="row"><a href="#{anchor(finding)}">'
        f"{sentence(finding.about.question)}</a></th>{_verdict_cells(finding, grid)}</tr>"
        for finding in run.findings.values()
    )
    head = "".join(f"<th scope=col>{name}</th>" for name in ("Question", *_ANSWERS))
    return (
        '<section id="verdicts"><h2>One answer per lens</h2><div class="scroll"><table class="verdicts">'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _verdict_cells(finding: Finding, grid: HeadGrid) -> str:
    if finding.status != "ok":
        reason = finding.reason or "no reason was given"
        return f"<td colspan=3>{escape(finding.status)}: {escape(reason)}</td>"
    answer, value, null = verdict(finding, grid)
    cells = (unbroken(sentence(answer)), escape(value or "–"), escape(null or "–"))
    return "".join(f'<td data-name="{name}">{html}</td>' for name, html in zip(_ANSWERS, cells, strict=True))


def verdict(finding: Finding, grid: HeadGrid) -> tuple[str, str, str]:
    """The answer of a lens in a few words, its number and its null, empty where there is none."""
    headline = answering(finding)
    answer = "–" if headline is None else headline.answer or headline.short
    value, null = ("", "") if headline is None else (headline.value, headline.null)
    if not value:
        value, null = _medians(finding, grid)
    return answer, _MINUS.sub(MINUS, value), _MINUS.sub(MINUS, null)


def _medians(finding: Finding, grid: HeadGrid) -> tuple[str, str]:
    """The median head of the lens's first quantity, and its null."""
    columns = grid.of_lens(finding.lens)
    if not columns:
        return "", ""
    column = columns[0]
    null = "" if column.nulls is None or np.isnan(column.nulls).all() else float(np.nanmedian(column.nulls))
    unit = column.quantity.unit
    value = f"{with_unit(float(np.nanmedian(column.values)), unit)} (median head)"
    return value, null if isinstance(null, str) else f"{number(100 * null)} %" if unit == "share" else number(null)


def heads_section(grid: HeadGrid) -> str:
    """The table of all heads; the script adds filters, other columns and a picture of any two quantities."""
    if not grid.columns:
        return ""
    table = table_element(_main_columns(grid), script=False)
    return f'<section id="heads"><h2>All heads</h2><div class="explorer">{table}</div></section>'


def _main_columns(grid: HeadGrid) -> WideTable:
    """The first quantity of each lens."""
    main = [grid.of_lens(lens)[0] for lens in dict.fromkeys(column.lens for column in grid.columns)]
    columns = [
        WideColumn(
            column.quantity.label,
            tuple(None if np.isnan(value) else value for value in column.values.tolist()),
            unit=column.quantity.unit,
            null=column.common_null,
            nulls=None if column.nulls is None or column.common_null is not None else tuple(column.nulls.tolist()),
        )
        for column in main
    ]
    return WideTable("heads", tuple(head.label for head in grid.heads), True, tuple(columns))
