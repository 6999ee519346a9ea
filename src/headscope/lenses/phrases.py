"""Phrases that the sentences of lenses share: intervals, and numbers of windows."""

from collections.abc import Callable, Mapping

import polars as pl


def interval_phrase(row: Mapping[str, object], write: Callable[[float], str], ends: tuple[str, str]) -> str:
    """The 95 % interval of a row in words; says so where there is none."""
    low, high = (row.get(end) for end in ends)
    if not isinstance(low, float) or not isinstance(high, float):
        return "no interval: too few windows"
    return f"95 % interval {write(low)} to {write(high)}"


def windows_phrase(table: pl.DataFrame) -> str:
    """How many windows of text a table rests on."""
    count = max((number for number in table["windows"].to_list() if number is not None), default=0)
    return f"{count} window{'' if count == 1 else 's'}"


def percent(value: float) -> str:
    """A share in percent, and never −0."""
    return f"{round(100 * value, 1) + 0.0:.3g} %" if abs(value) < 0.1 else f"{100 * value:.0f} %"


def two_digits(value: float) -> str:
    """Two significant digits, and never −0."""
    return f"{value + 0.0:.2g}"
