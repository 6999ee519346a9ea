"""Rows and numbers that judges read from a finding, with their standard errors.

A table or column that is not there gives nothing, and the claim goes on waiting; no number is made up.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from headscope.core import Finding

HALF_WIDTH = 1.959963984540054  # standard errors on either side of a 95 % interval


def rows_of(finding: Finding, name: str, columns: Sequence[str] = ("value",), /, **equal: Any) -> pl.DataFrame | None:
    """The rows with these entries and a number in each column; None without any."""
    frame = finding.tables.get(name)
    if frame is None or not {*columns, *equal} <= set(frame.columns):
        return None
    for column, entry in equal.items():
        frame = frame.filter(pl.col(column) == entry)
    frame = frame.drop_nulls(list(columns))
    return None if frame.is_empty() else frame


def numbers(frame: pl.DataFrame, column: str = "value") -> np.ndarray:
    """One column as numbers."""
    return np.array(frame[column].to_list(), dtype=np.float64)


def errors(frame: pl.DataFrame, column: str = "") -> np.ndarray:
    """Standard errors of a column from its 95 % interval.

    The interval is in `low` and `high`, or in `NAME_low` and `NAME_high`.
    """
    low, high = (f"{column}_{end}" if column else end for end in ("low", "high"))
    widths: np.ndarray = numbers(frame, high) - numbers(frame, low)
    return widths / (2 * HALF_WIDTH)


def mean_and_error(frame: pl.DataFrame) -> tuple[float, float]:
    """The mean of `value` over rows, with the mean of their standard errors.

    Rows of one finding share their windows, so their errors go together and do not average out.
    """
    return float(numbers(frame).mean()), float(errors(frame).mean())
