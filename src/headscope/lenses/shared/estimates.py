"""Estimates in sentences: a value and its interval rounded alike, counts, and what a test could detect."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, inf, isfinite, log10

import polars as pl
import torch

from headscope.lenses.shared.phrases import undetected
from headscope.lenses.shared.written_numbers import counted, decimals_of
from headscope.maths.resampling.jackknife import detectable_among

# Decimals that are added at most, to keep an end of an interval on its side of the null or to tell two numbers apart.
MORE_DECIMALS = 4
# An interval that is narrower than this share of its ends is the rounding of sums: the windows agree.
AGREEMENT = 1e-9


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval as a sentence writes them."""

    value: str
    interval: str

    def __str__(self) -> str:
        return f"{self.value} ({self.interval})"


def estimate(
    row: Mapping[str, object],
    column: str = "value",
    ends: tuple[str, str] = ("low", "high"),
    *,
    null: float = 0.0,
    scale: float = 1.0,
    percent: bool = False,
    signed: bool = False,
    digits: int = 2,
) -> Estimate:
    """The value of a row with its interval, with as many decimals as the width of the interval calls for.

    Everything is divided by `scale`, the null is in the same unit. Without an interval the value has `digits`
    significant digits.

    Properties:
        - the value lies in its interval as written  (tested: test_a_value_lies_in_its_interval_as_written)
        - an end that leaves the null out does so as written  (tested: test_an_end_stays_on_its_side_of_the_null)
    """
    factor, unit = (100.0, " %") if percent else (1.0, "")
    value, low, high = (_times(row.get(name), factor / scale) for name in (column, *ends))
    if value is None:
        return Estimate("not measured", "no interval")
    if low is None or high is None:
        return Estimate(f"{rounded(value, digits, signed=signed)}{unit}", "no interval: too few windows")
    if high - low <= AGREEMENT * max(abs(low), abs(high)):
        windows = row.get("windows")
        agree = f"the same in all {windows} windows" if isinstance(windows, int) else "no spread"
        return Estimate(f"{rounded(value, digits, signed=signed)}{unit}", agree)
    places = _decimals((high - low) / 2, (low, high), null * factor)
    texts = [f"{fixed(number, places, signed=signed)}{unit}" for number in (value, low, high)]
    return Estimate(texts[0], f"95 % interval {texts[1]} to {texts[2]}")


def _times(cell: object, factor: float) -> float | None:
    """A cell in another unit; None where it is no finite number."""
    return float(cell) * factor if isinstance(cell, (int, float)) and isfinite(cell) else None


def _decimals(half: float, ends: tuple[float, float], null: float) -> int:
    """One digit of the half width, two below 3.5; more where an end would be rounded onto the null."""
    exponent = floor(log10(half))
    places = max(0, -exponent + (half < 3.5 * 10.0**exponent))
    enough = (
        more
        for more in range(places, places + MORE_DECIMALS)
        if all(_side(round(end, more), null) == _side(end, null) for end in ends)
    )
    return next(enough, places)


def _side(number: float, null: float) -> int:
    """1 above the null, −1 below it, 0 on it."""
    return (number > null) - (number < null)


def fixed(value: float, decimals: int, *, signed: bool = False) -> str:
    """A number with so many decimals, and never −0."""
    number = round(value, decimals) + 0.0
    return f"{number:+.{decimals}f}" if signed and number else f"{number:.{decimals}f}"


def rounded(value: float, digits: int = 2, *, signed: bool = False) -> str:
    """A number with so many significant digits, without a power of ten; with its sign if asked."""
    return fixed(value, decimals_of(value, digits), signed=signed)


def apart(value: float, reference: float, decimals: int) -> tuple[str, str]:
    """Two numbers with the same decimals: more than `decimals` where that tells them apart."""
    pairs = [(fixed(value, places), fixed(reference, places)) for places in range(decimals, decimals + MORE_DECIMALS)]
    return next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])


def compared(value: float, reference: float, digits: int = 2) -> tuple[str, str]:
    """Two numbers, each with so many significant digits; told apart where these look equal."""
    texts = rounded(value, digits), rounded(reference, digits)
    return texts if texts[0] != texts[1] else apart(value, reference, 1)


def window_count(rows: pl.DataFrame) -> int:
    """How many windows the rows rest on: the largest number of any row."""
    return max(int(number) for number in rows["windows"].to_list())


def how_many(number: int, total: int, noun: str = "head") -> str:
    """`3 of 32 heads`, `none of 32 heads`; `the only head` where that is all there is."""
    return f"the only {noun}" if number == total == 1 else f"{number or 'none'} of {counted(total, noun)}"


def intervals_leave(detected: Sequence[bool], noun: str = "head") -> str:
    """`the intervals of 3 of 32 heads leave`, in the singular where it is one or none."""
    number = sum(detected)
    plural, verb = ("s", "leave") if number > 1 else ("", "leaves")
    return f"the interval{plural} of {how_many(number, len(detected), noun)} {verb}"


def untested(windows: int) -> str:
    """The end of a short form whose number has no interval."""
    return f"{'one window' if windows == 1 else counted(windows, 'window')} cannot test it"


def no_detection(subject: str, size: float | None, written: str, windows: int, *, most: float = inf) -> str:
    """The short form where nothing was detected: which size would have been, or that the windows are too few.

    `most` is the largest size that there can be: an absence is no news where nothing could have been detected.
    """
    if size is None or not size < most:
        return f"{counted(windows, 'window')} {'is' if windows == 1 else 'are'} too few to detect any {subject}."
    return undetected(subject, written)


def countable_effect(
    rows: pl.DataFrame,
    counted_rows: int,
    ends: tuple[str, str] = ("low", "high"),
    *,
    units: str = "windows",
    scale: str | None = None,
) -> float | None:
    """The effect with which one more row would be counted in four of five texts, in the median row.

    All rows were tested together, false discoveries held at 5 %, and `counted_rows` of them were counted. None where no
    row has an interval.
    """
    low, high = ends
    tested = rows.filter(pl.col(low).is_finite(), pl.col(high).is_finite(), pl.col(units) > 1)
    if scale is not None:
        tested = tested.filter(pl.col(scale) > 0)
    if tested.is_empty():
        return None
    size = 1.0 if scale is None else tested[scale].to_torch()
    halves = (tested[high] - tested[low]).to_torch() / 2 / size
    effects = torch.zeros_like(halves)
    for number in tested[units].unique().to_list():
        alike = (tested[units] == number).to_torch()
        effects[alike] = detectable_among(halves[alike], number, rows.height, counted_rows)
    return float(effects.quantile(0.5))
