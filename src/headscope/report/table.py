"""A table in a page: its first rows and columns as HTML, and all of it as data for the script.

So the first rows print and need no script. The run folder holds the long form, with a row for each number.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from headscope.core import HeadQuantity
from headscope.core.html_text import escape
from headscope.core.numbers import cell, count, counted, number
from headscope.report.markup import sentence
from headscope.report.page_data import data_script, number_json, numbers_json
from headscope.report.wide_table import WideColumn, WideTable, wide_table

ROWS = 12
COLUMNS = 7  # columns of numbers that fit on a sheet of paper
_FEW = 4  # rows or columns more are no reason to cut
_LONG = 44  # characters; longer text wraps in a wide column (`tables/table.ts` has the same number)


def table(
    name: str,
    frame: pl.DataFrame,
    glossary: Mapping[str, str],
    *,
    quantities: Sequence[HeadQuantity] = (),
    lens: str = "",
    id_: str = "",
    script: bool = True,
) -> str:
    """The wide form of a stored table.

    With `script` and an id also the data to sort, filter and download.
    """
    return table_element(wide_table(name, frame, glossary, quantities), lens=lens, id_=id_, script=script)


def table_element(wide: WideTable, *, lens: str = "", id_: str = "", script: bool = True) -> str:
    """A wide table: caption, first rows and columns, tools, data."""
    has_script = script and bool(id_)
    n_rows, n_columns = _shown(len(wide.labels), ROWS), _shown(len(wide.columns), COLUMNS)
    columns = wide.columns[:n_columns]
    headings = _corner(wide, has_script) + "".join(_heading(column, has_script) for column in columns)
    names = f'class="table" data-table="{id_}" id="{id_}" data-name="{escape(_file(lens, wide.name))}"'
    return (
        f"<div {names if has_script else 'class=table'}>"
        f'<p class="caption">{_caption(wide, lens)}</p>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="Table {escape(wide.name)}"><table>'
        f"<thead><tr>{headings}</tr></thead>"
        f"<tbody>{_rows(wide, columns, n_rows)}</tbody></table></div>"
        f"{_tools(wide, n_rows, n_columns, has_script)}"
        f"{data_script(id_, table_json(wide, n_rows, n_columns)) if has_script else ''}</div>"
    )


def _shown(total: int, most: int) -> int:
    return total if total <= most + _FEW else most


def table_json(wide: WideTable, n_rows: int, n_columns: int) -> dict[str, Any]:
    """All rows and columns for the script."""
    return {
        "rows": n_rows,
        "shown": n_columns,
        "heads": wide.of_heads,
        "labels": wide.labels if any(wide.labels) else None,
        "columns": [_column_json(column) for column in wide.columns],
    }


def _column_json(column: WideColumn) -> dict[str, Any]:
    entry: dict[str, Any] = {"label": column.label, "number": column.is_number}
    if not column.is_number:
        return entry | {"values": [None if value is None else str(value) for value in column.values]}
    entry |= {"digits": column.digits, "values": numbers_json(column.values)}
    optional = {"unit": column.unit, "null": number_json(column.null), "meaning": column.meaning}
    arrays = {"nulls": column.nulls, "low": column.low, "high": column.high}
    return (
        entry
        | {key: text for key, text in optional.items() if text not in ("", None)}
        | {key: numbers_json(values) for key, values in arrays.items() if values is not None}
    )


def _file(lens: str, name: str) -> str:
    return f"{lens}.{name}" if lens else name


def _caption(wide: WideTable, lens: str) -> str:
    rows = counted(len(wide.labels), "head" if _only_heads(wide) else "row")
    same = ", ".join(f"{name} {value}" for name, value in wide.constants if value != "None")
    stored = f"; one row per number: <code>tables/{escape(_file(lens, wide.name))}.parquet</code>" if lens else ""
    return (
        f"<b>Table {escape(wide.name)}</b>, {rows} × {counted(len(wide.columns), 'column')}"
        + (f"; in all of them {escape(same)}" if same else "")
        + stored
    )


def _only_heads(wide: WideTable) -> bool:
    return wide.of_heads and all(".H" in label or label.startswith("H") for label in wide.labels)


def _corner(wide: WideTable, script: bool) -> str:
    if not any(wide.labels):
        return ""
    label = "head" if _only_heads(wide) else "place"
    return f'<th scope="col">{f"<button>{label}</button>" if script else label}</th>'


def _heading(column: WideColumn, script: bool) -> str:
    tip = f' title="{escape(column.meaning)}"' if column.meaning else ""
    label = sentence(column.label)
    kind = ' class="n"' if column.is_number else ""
    null = f"<small>{null_text(column)}</small>" if null_text(column) else ""
    return f'<th scope="col"{kind}{tip}>{f"<button>{label}</button>" if script else label}{null}</th>'


def null_text(column: WideColumn) -> str:
    """The null under the name of a column: one number, or the range of the rows."""
    if column.null is not None:
        return f"null {number(column.null)}"
    finite_nulls = sorted(null for null in column.nulls or () if null is not None and null == null)
    return f"null {number(finite_nulls[0])} to {number(finite_nulls[-1])}" if finite_nulls else ""


def _rows(wide: WideTable, columns: Sequence[WideColumn], n_rows: int) -> str:
    digits = [column.digits for column in columns]
    has_labels = any(wide.labels)

    def cells(row: int) -> Iterator[str]:
        if has_labels:
            yield f"<th scope=row>{_label(wide.labels[row])}</th>"
        for column, decimals in zip(columns, digits, strict=True):
            # The same digits as in the data, so that the script writes the same.
            text = cell(number_json(column.values[row]), decimals) if column.is_number else column.cell_text(row)
            kind = " class=n" if column.is_number else " class=long" if len(text) > _LONG else ""
            yield f"<td{kind}>{escape(text)}</td>"

    return "".join(f"<tr>{''.join(cells(row))}</tr>" for row in range(n_rows))


def _label(label: str) -> str:
    return escape(label) or "–"


def _tools(wide: WideTable, n_rows: int, n_columns: int, script: bool) -> str:
    total_rows, total_columns = len(wide.labels), len(wide.columns)
    parts = [f"first {n_rows} of {count(total_rows)} rows"] if n_rows < total_rows else []
    parts += [f"first {n_columns} of {count(total_columns)} columns"] if n_columns < total_columns else []
    note = f'<span class="rest">{" and ".join(parts).capitalize()}</span>' if parts else '<span class="rest"></span>'
    if not script:
        return f'<p class="tools">{note}</p>' if parts else ""
    more = f'<button class="more">All {count(total_rows)} rows</button>' if n_rows < total_rows else ""
    wider = f'<button class="wider">All {count(total_columns)} columns</button>' if n_columns < total_columns else ""
    search = (
        '<input type="search" placeholder="Filter, e.g. L3.H7" aria-label="Filter rows">' if total_rows > _FEW else ""
    )
    return f'<p class="tools">{note}{more}{wider}<button class="csv">CSV</button>{search}</p>'
