"""Tables: the first rows as HTML, and all rows as data for the script.

So the first rows print and need no script.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from headscope.core.html_text import escape
from headscope.core.numbers import cell, count, decimals, visible
from headscope.report.markup import sentence

ROWS_SHOWN = 12
_LONG = 44  # characters; longer text wraps in a wide column (report.js has the same number)
_EXACT = 8  # significant digits kept in the page; the run folder holds all of them
_JSON_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&"}  # json itself escapes everything beyond ASCII


@dataclass(frozen=True)
class Column:
    """A column and its format: words unchanged, numbers with `digits` decimals."""

    name: str
    values: list[Any]
    is_number: bool
    digits: int | None
    is_constant: bool
    meaning: str

    def cell_text(self, row: int) -> str:
        """The text of one cell."""
        value = self.values[row]
        if self.is_number:
            return cell(value, self.digits)
        return "–" if value is None else visible(str(value))


def table(name: str, frame: pl.DataFrame, glossary: Mapping[str, str], script: bool = True) -> str:
    """The first rows and the meaning of the columns.

    With `script` also the data to sort, filter and download.
    """
    meanings = _meanings(glossary)
    columns = [_column(series, meanings) for series in frame.get_columns()]
    visible = [column for column in columns if not column.is_constant]
    n_rows = min(frame.height, ROWS_SHOWN if frame.height > ROWS_SHOWN + 4 else ROWS_SHOWN + 4)
    return (
        f'<div class="table" data-name="{escape(name)}">'
        f'<p class="caption">{_caption(name, frame.height, columns)}</p>'
        f'<div class="scroll"><table aria-label="{escape(name)}">'
        f"<thead><tr>{''.join(_heading(column, script) for column in visible)}</tr></thead>"
        f"<tbody>{_rows(visible, n_rows)}</tbody></table></div>"
        f"{_tools(frame.height, n_rows, script)}{_glossary(frame.columns, glossary)}"
        f"{_data(columns, n_rows) if script else ''}</div>"
    )


def json_for_html(data: object) -> str:
    """JSON that is safe inside a `<script>` element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.translate(_JSON_ESCAPES)


def _column(series: pl.Series, meanings: Mapping[str, str]) -> Column:
    is_number = series.dtype.is_numeric()
    values = series.to_list()
    digits = decimals(float(value) for value in values if value is not None) if is_number else None
    is_constant = len(values) > 1 and series.n_unique() == 1 and (not is_number or values[0] is None)
    return Column(series.name, values, is_number, digits, is_constant, meanings.get(series.name, ""))


def _meanings(glossary: Mapping[str, str]) -> dict[str, str]:
    """The meaning of each column.

    One entry of the glossary may describe several: `layer, head`.
    """
    return {name.strip(): meaning for names, meaning in glossary.items() for name in names.split(",")}


def _caption(name: str, height: int, columns: Sequence[Column]) -> str:
    same = ", ".join(
        f"{column.name} {column.values[0]}" for column in columns if column.is_constant and column.values[0] is not None
    )
    size = f"{count(height)} {'row' if height == 1 else 'rows'}"
    return f"<b>Table {escape(name)}</b>, {size}" + (f"; in all of them {escape(same)}" if same else "")


def _heading(column: Column, script: bool) -> str:
    tip = f' title="{escape(column.meaning)}"' if column.meaning else ""
    label = escape(column.name).replace("_", "_<wbr>")
    kind = ' class="n"' if column.is_number else ""
    return f'<th scope="col"{kind}{tip}>{f"<button>{label}</button>" if script else label}</th>'


def _rows(columns: Sequence[Column], n_rows: int) -> str:
    def cells(row: int) -> Iterator[str]:
        for column in columns:
            text = column.cell_text(row)
            kind = " class=n" if column.is_number else " class=long" if len(text) > _LONG else ""
            yield f"<td{kind}>{escape(text)}</td>"

    return "".join(f"<tr>{''.join(cells(row))}</tr>" for row in range(n_rows))


def _tools(height: int, n_rows: int, script: bool) -> str:
    row_note = f'<span class="rest">First {n_rows} of {count(height)} rows</span>' if n_rows < height else ""
    if not script:
        return f'<p class="tools">{row_note}</p>' if row_note else ""
    more = f'<button class="more" aria-expanded="false">Show all {count(height)}</button>' if row_note else ""
    search = '<input type="search" placeholder="Filter, e.g. L3.H7" aria-label="Filter rows">' if row_note else ""
    return f'<p class="tools">{row_note}{more}<button class="csv">Download CSV</button>{search}</p>'


def _glossary(columns: Sequence[str], glossary: Mapping[str, str]) -> str:
    meanings = [
        (names, meaning)
        for names, meaning in glossary.items()
        if any(name.strip() in columns for name in names.split(","))
    ]
    if not meanings:
        return ""
    entries = "".join(f"<dt>{escape(names)}</dt><dd>{sentence(meaning)}</dd>" for names, meaning in meanings)
    return f'<details class="glossary"><summary>What the columns mean</summary><dl>{entries}</dl></details>'


def _data(columns: Sequence[Column], n_rows: int) -> str:
    columns_json = [
        {
            "name": column.name,
            "number": column.is_number,
            "digits": column.digits,
            "hidden": column.is_constant,
        }
        | _pack(column)
        for column in columns
    ]
    return f'<script type="application/json">{json_for_html({"shown": n_rows, "columns": columns_json})}</script>'


def _pack(column: Column) -> dict[str, Any]:
    """The values; repeated words as a list of distinct words and indices into it."""
    if column.is_number:
        return {"values": [_plain(value) for value in column.values]}
    words = [None if value is None else str(value) for value in column.values]
    places = {word: place for place, word in enumerate(dict.fromkeys(words))}
    return {"words": list(places), "places": [places[word] for word in words]}


def _plain(value: float | int | None) -> float | int | str | None:
    """A number for JSON; numbers that JSON lacks become their names."""
    if value is None or isinstance(value, int):
        return value
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    rounded = float(f"{value:.{_EXACT}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded
