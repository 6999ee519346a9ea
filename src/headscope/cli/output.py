"""Tables and findings to standard output, in the format that was asked for."""

import io
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from headscope.cli.screen import note
from headscope.cli.streams import output_errors
from headscope.errors import ResourceError, UsageError

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console

    from headscope.api import Display, Passage
    from headscope.core import Finding

SHOWN_ROWS = 24
WRAPPED = 16  # the least width that a column of words is given


class Format(StrEnum):
    """How data is written to standard output."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


@dataclass(frozen=True)
class Column:
    """A column for the screen: its name and cells, and whether they are numbers."""

    name: str
    cells: tuple[str, ...]
    is_numeric: bool


def console() -> "Console":
    """Standard output for people; rich is loaded here, since CSV and JSON do not need it."""
    from rich.console import Console

    return Console(highlight=False)


def show_table(frame: "pl.DataFrame", form: Format) -> None:
    """One table, whole; on a screen (`table`) its first rows."""
    if form is Format.TABLE:
        head = frame.head(_shown_rows(frame.height))
        columns = [Column(name, _cells(head[name]), dtype.is_numeric()) for name, dtype in frame.schema.items()]
        _show_columns(columns, frame.height)
    elif form is Format.JSON:
        show_json(frame.to_dicts())
    elif form is Format.CSV:
        sys.stdout.write(frame.write_csv())
    else:
        _write_parquet(frame)


def show_rows(rows: Sequence[dict[str, Any]], form: Format) -> None:
    """A list of plain rows; for people and as JSON without polars, which takes longer to load than to list."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    if form is Format.JSON:
        show_json([{name: row.get(name) for name in names} for row in rows])
    elif form is Format.TABLE:
        values = {name: [row.get(name) for row in rows] for name in names}
        _show_columns(
            [Column(name, _cells(column), _are_numbers(column)) for name, column in values.items()], len(rows)
        )
    else:
        import polars as pl

        show_table(pl.DataFrame(rows, infer_schema_length=None), form)


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values if value is not None)


def show_finding(finding: "Finding", form: Format, table: str | None) -> None:
    """What a lens found: as a table with its headlines, as one JSON object, or one of its tables."""
    if form is Format.JSON:
        show_json(_as_object(finding))
        return
    frame = finding.table if table is None else _table(finding, table)
    if form is Format.TABLE:
        show_headlines(finding)
    show_table(frame, form)


def show_experiment(
    finding: "Finding", show: Callable[["Finding"], "Display"], form: Format, table: str | None, out: Path | None
) -> None:
    """What an experiment found: on a screen what it shows there, else like a lens; and where its report is."""
    if form is Format.TABLE and table is None:
        display = show(finding)
        show_headlines(finding)
        show_table(display.table, Format.TABLE)
        for passage in display.passages:
            _show_passage(passage)
    else:
        show_finding(finding, form, table)
    if out is not None:
        note(f"the report: {(out / 'report.html').resolve()}")


def show_page(page: Path) -> None:
    """Open a page in the browser of this machine; where there is none, say so."""
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        note("no browser was found: open the page yourself")


def _show_passage(passage: "Passage") -> None:
    from rich.text import Text

    screen = console()
    screen.print(Text(f"\n{passage.title}", style="bold"))
    for label, text in passage.texts:
        screen.print(Text.assemble((f"  {label}: ", "dim"), " ".join(text.split()) or "(nothing)"))


def show_json(data: Any) -> None:
    """Write standard JSON: NaN and ∞, which it does not have, become null."""
    sys.stdout.write(json.dumps(_finite(data), indent=2, ensure_ascii=False, default=str) + "\n")


def _as_object(finding: "Finding") -> dict[str, Any]:
    names = ("lens", "status", "reason", "headlines", "method", "warnings", "params")
    facts = {name: getattr(finding, name) for name in names}
    facts["headlines"] = [headline.full for headline in finding.headlines]
    return {**facts, "tables": {name: frame.to_dicts() for name, frame in finding.tables.items()}}


def _table(finding: "Finding", name: str) -> "pl.DataFrame":
    if name not in finding.tables:
        raise UsageError(
            f"lens {finding.lens!r} makes no table {name!r}",
            hint=f"its tables are {', '.join(finding.tables)}",
        )
    return finding.tables[name]


def show_headlines(finding: "Finding") -> None:
    """The sentences, the warnings and the method of a finding."""
    from rich.text import Text

    screen = console()
    for headline in finding.headlines:
        screen.print(Text(f"• {headline.full}"))
    for warning in finding.warnings:
        screen.print(Text(f"! {warning}", style="yellow"))
    if finding.method:
        screen.print(Text(f"method: {finding.method}", style="dim"))
    screen.print()


def _show_columns(columns: Sequence[Column], height: int) -> None:
    """The columns that fit, as a table; a note says what does not."""
    from rich.table import Table
    from rich.text import Text

    screen = console()
    fitting = columns[: _columns_that_fit(columns, screen.width)]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in fitting:
        table.add_column(column.name, justify="right" if column.is_numeric else "left")
    n_rows = _shown_rows(height)
    for row in range(n_rows):
        table.add_row(*(Text(column.cells[row]) for column in fitting))
    screen.print(table)
    hidden = [f"{height - n_rows} more rows"] if height > n_rows else []
    if len(fitting) < len(columns):
        hidden.append("more columns: " + ", ".join(column.name for column in columns[len(fitting) :]))
    if hidden:
        note(f"… {'; '.join(hidden)} (--format csv or json gives everything)")


def _shown_rows(height: int) -> int:
    """How many rows a screen gets: all, unless there are clearly more than fit."""
    return SHOWN_ROWS if height > SHOWN_ROWS + 4 else height


def _columns_that_fit(columns: Sequence[Column], width: int) -> int:
    """Whole columns only: a number cut in the middle misleads. Words may wrap, so they count for a part."""
    used = 0
    for index, column in enumerate(columns):
        longest = max(map(len, (column.name, *column.cells[:SHOWN_ROWS])))
        used += longest + 2 if column.is_numeric else min(longest, WRAPPED) + 2
        if used - 2 > width:
            return max(index, 1)
    return len(columns)


def _cells(values: Any) -> tuple[str, ...]:
    return tuple(map(_cell, values))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def check_destination(form: Format) -> None:
    """Refuse to write binary data to a terminal, before the work is done."""
    if form is Format.PARQUET and sys.stdout.isatty():
        raise UsageError(
            "parquet is binary and standard output is a terminal",
            hint="redirect it: … --format parquet > table.parquet",
        )


def _write_parquet(frame: "pl.DataFrame") -> None:
    check_destination(Format.PARQUET)
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    with output_errors():
        sys.stdout.buffer.write(buffer.getvalue())
        sys.stdout.buffer.flush()


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def write_text(content: str, out: str) -> None:
    """Write a result into a file that the user names, and say where; - is standard output."""
    if out == "-":
        sys.stdout.buffer.write(content.encode())
        return
    try:
        Path(out).write_text(content, encoding="utf-8")
    except OSError as error:
        raise ResourceError(f"cannot write {out}: {error.strerror}", hint="choose another file with --out") from error
    typer.echo(out)
