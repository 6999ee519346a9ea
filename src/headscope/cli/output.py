"""Tables and findings to standard output, in the format that was asked for."""

import io
import json
import math
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headscope.cli.screen import note
from headscope.cli.streams import output_errors
from headscope.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

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


def show_table(frame: "pl.DataFrame", form: Format) -> None:
    """One table, whole; on a screen (`table`) its first rows."""
    if form is Format.TABLE:
        _show_rows(frame)
    elif form is Format.JSON:
        show_json(frame.to_dicts())
    elif form is Format.CSV:
        sys.stdout.write(frame.write_csv())
    else:
        _write_parquet(frame)


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


def _show_passage(passage: "Passage") -> None:
    console = Console(highlight=False)
    console.print(Text(f"\n{passage.title}", style="bold"))
    for label, text in passage.texts:
        console.print(Text.assemble((f"  {label}: ", "dim"), " ".join(text.split()) or "(nothing)"))


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
    console = Console(highlight=False)
    for headline in finding.headlines:
        console.print(Text(f"• {headline.full}"))
    for warning in finding.warnings:
        console.print(Text(f"! {warning}", style="yellow"))
    if finding.method:
        console.print(Text(f"method: {finding.method}", style="dim"))
    console.print()


def _show_rows(frame: "pl.DataFrame") -> None:
    console = Console(highlight=False)
    table = Table(box=None, header_style="bold", pad_edge=False)
    fitting = frame[:, : _columns_that_fit(frame, console.width)]
    for name, dtype in fitting.schema.items():
        table.add_column(name, justify="right" if dtype.is_numeric() else "left")
    limit = SHOWN_ROWS if frame.height > SHOWN_ROWS + 4 else frame.height
    for row in fitting.head(limit).iter_rows():
        table.add_row(*(Text(_cell(value)) for value in row))
    console.print(table)
    hidden = [f"{frame.height - limit} more rows"] if frame.height > limit else []
    if fitting.width < frame.width:
        hidden.append("more columns: " + ", ".join(frame.columns[fitting.width :]))
    if hidden:
        note(f"… {'; '.join(hidden)} (--format csv or json gives everything)")


def _columns_that_fit(frame: "pl.DataFrame", width: int) -> int:
    """Whole columns only: a number cut in the middle misleads. Words may wrap, so they count for a part."""
    used = 0
    for index, name in enumerate(frame.columns):
        longest = max(len(_cell(value)) for value in [name, *frame[name].head(SHOWN_ROWS)])
        used += longest + 2 if frame.schema[name].is_numeric() else min(longest, WRAPPED) + 2
        if used - 2 > width:
            return max(index, 1)
    return frame.width


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
