"""What a sentence may say where nothing was detected: only as much as could have been."""

from collections.abc import Callable
from math import inf

import polars as pl

from headscope.lenses.shared.phrases import detectable_effect, undetected
from headscope.lenses.shared.written_numbers import counted

# What one test detects, up to which all windows agree: it is rounding.
NOTHING = 1e-9


def absence(
    subject: str,
    size: float | None,
    write: Callable[[float], str],
    *,
    windows: int,
    reach: float = inf,
    one_of_many: bool = False,
    unit: str = "window",
) -> str:
    """The short form where nothing was detected, over so many windows or other units.

    `size` is what one test detects in four of five texts, None without an interval; `reach` is the largest effect that
    is possible. Where even that could be missed, nothing is said to be absent. `one_of_many`: p-values are adjusted for
    the number of tests, so that one of them detects less than it would alone.
    """
    if size is None:
        return f"No {subject} can be shown: there is no interval."
    if size > reach:
        return f"No {subject} can be shown; even {write(reach)} could be missed."
    if size <= NOTHING:
        return f"No {subject} in any of {counted(windows, unit)}."
    return (
        f"No {subject} was detected; one test alone detects {write(size)}."
        if one_of_many
        else undetected(subject, write(size))
    )


def limit_clause(size: float | None, write: Callable[[float], str], *, reach: float = inf) -> str:
    """What one test detects, as a clause; empty without an interval."""
    if size is None:
        return ""
    if size > reach:
        return f"even {write(reach)}, the most that is possible, could be missed"
    return f"one test detects {write(size)} in four of five texts" if size > NOTHING else "all windows agree"


def uncut_effect(rows: pl.DataFrame, *, scale: str | None = None) -> float | None:
    """`detectable_effect` where intervals may be cut off at what is possible: by their longer halves.

    Properties:
        - an end that is cut off makes nothing easier to detect  (tested: test_a_cut_interval_detects_no_less)
    """
    half = pl.max_horizontal(pl.col("high") - pl.col("value"), pl.col("value") - pl.col("low"))
    uncut = rows.with_columns(low=pl.col("value") - half, high=pl.col("value") + half)
    return detectable_effect(uncut, scale=scale)
