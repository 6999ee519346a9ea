"""Writes a comparison: the page, and its tables as parquet."""

import io
from pathlib import Path

import polars as pl

from headscope.comparison.comparison import DIFFERENCES, PAGE, VERDICTS, Comparison
from headscope.comparison.page import render
from headscope.report.files import write_bytes


def save(comparison: Comparison, folder: Path) -> Path:
    """Write `compare.html` and the tables to a folder, each in one step; returns the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in ((DIFFERENCES, comparison.differences), (VERDICTS, comparison.verdicts)):
        write_bytes(folder / name, _parquet(table))
    write_bytes(folder / PAGE, render(comparison).encode())
    return folder / PAGE


def _parquet(table: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    return buffer.getvalue()
