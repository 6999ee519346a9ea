"""Phrases that the sentences of lenses share: intervals, and numbers of windows."""

from collections.abc import Callable, Mapping

import polars as pl
import torch

from headscope.maths.resampling.jackknife import detectable


def interval_phrase(row: Mapping[str, object], write: Callable[[float], str], ends: tuple[str, str]) -> str:
    """The 95 % interval of a row in words, or that there is none."""
    low, high = (row.get(end) for end in ends)
    if not isinstance(low, float) or not isinstance(high, float):
        return "no interval: too few windows"
    return f"95 % interval {write(low)} to {write(high)}"


def windows_phrase(table: pl.DataFrame) -> str:
    """How many windows of text a table rests on."""
    count = max((number for number in table["windows"].to_list() if number is not None), default=0)
    return f"{count} window{'' if count == 1 else 's'}"


def detectable_effect(
    rows: pl.DataFrame, ends: tuple[str, str] = ("low", "high"), *, units: str = "windows", scale: str | None = None
) -> float | None:
    """The effect that one test detects in four of five texts, in the median row; None where no row has an interval.

    The column `units` counts what the intervals were taken over; `scale` names a column that effects are divided by.
    """
    low, high = ends
    tested = rows.filter(pl.col(low).is_finite(), pl.col(high).is_finite(), pl.col(units) > 1)
    if scale is not None:
        tested = tested.filter(pl.col(scale) > 0)
    if tested.is_empty():
        return None
    size = 1.0 if scale is None else tested[scale].to_torch()
    halves = (tested[high] - tested[low]).to_torch() / 2 / size
    effects = [detectable(half, count) for half, count in zip(halves, tested[units].to_list(), strict=True)]
    return float(torch.stack(effects).quantile(0.5))


def undetected(subject: str, size: str) -> str:
    """The short form where nothing was detected: of what, and which size would have been."""
    return f"No {subject} was detected; {size} would have been."


def percent(value: float) -> str:
    """A share in percent, and never −0."""
    return f"{round(100 * value, 1) + 0.0:.3g} %" if abs(value) < 0.1 else f"{100 * value:.0f} %"


def two_digits(value: float) -> str:
    """Two significant digits, and never −0."""
    return f"{value + 0.0:.2g}"
