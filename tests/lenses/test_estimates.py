"""Estimates in sentences: rounding that keeps intervals true, and effects that a count would have shown."""

import math
import re

import polars as pl
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from headscope.lenses.shared.estimates import (
    apart,
    compared,
    countable_effect,
    estimate,
    fixed,
    how_many,
    intervals_leave,
    no_detection,
    rounded,
    untested,
)
from headscope.maths.resampling.jackknife import detectable_among

NUMBERS = st.floats(-1e4, 1e4, allow_nan=False)
WIDTHS = st.floats(1e-4, 1e4)


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"[-+]?\d+(?:\.\d+)?", text.replace("95 % interval", ""))]


@given(NUMBERS, WIDTHS, WIDTHS)
@example(3.34, 0.05, 0.07)  # 3 with the interval 3.3 to 3.4, once
def test_a_value_lies_in_its_interval_as_written(value, below, above):
    row = {"value": value, "low": value - below, "high": value + above}
    written, low, high = numbers(str(estimate(row)))
    assert low <= written <= high
    assert low < high
    half = (below + above) / 2
    assert abs(written - value) <= 0.26 * half, "rounding costs at most a quarter of half the width"


@given(WIDTHS, st.floats(0.01, 0.99), st.sampled_from((0.0, 1.0, 0.375)))
def test_an_end_stays_on_its_side_of_the_null(width, share, null):
    assume(share * width > 1e-4 * width)
    row = {"value": null + width, "low": null + share * width, "high": null + (2 - share) * width}
    _, low, high = numbers(str(estimate(row, null=null)))
    assert null < low < high
    mirrored = {"value": null - width, "low": null - (2 - share) * width, "high": null - share * width}
    _, low, high = numbers(str(estimate(mirrored, null=null)))
    assert low < high < null


def test_an_estimate_has_the_digits_that_its_interval_calls_for():
    assert str(estimate({"value": 0.8912, "low": 0.8612, "high": 0.9212})) == "0.891 (95 % interval 0.861 to 0.921)"
    assert str(estimate({"value": 0.8912, "low": 0.8512, "high": 0.9312})) == "0.89 (95 % interval 0.85 to 0.93)"
    shares = {"value": 0.881, "low": 0.8805, "high": 0.8815}
    assert str(estimate(shares, percent=True)) == "88.10 % (95 % interval 88.05 % to 88.15 %)"
    halves = {"value": 0.5, "low": -0.3, "high": 1.32}
    assert str(estimate(halves, scale=2.0, signed=True)) == "+0.2 (95 % interval -0.1 to +0.7)"
    assert str(estimate({"value": 1234.0, "low": 1034.0, "high": 1434.0})) == "1234 (95 % interval 1034 to 1434)"


def test_what_is_no_number_is_not_written():
    assert str(estimate({"value": 0.1234, "low": None, "high": None})) == "0.12 (no interval: too few windows)"
    assert str(estimate({"value": 0.1234, "low": math.nan, "high": 1.0})) == "0.12 (no interval: too few windows)"
    assert str(estimate({"value": math.nan, "low": 0.0, "high": 1.0})) == "not measured (no interval)"
    for rounding in (0.0, 1e-15):
        agree = {"value": 1.0, "low": 1.0 - rounding, "high": 1.0, "windows": 3}
        assert str(estimate(agree, percent=True)) == "100 % (the same in all 3 windows)"


def test_numbers_have_no_powers_of_ten_and_no_minus_zero():
    assert rounded(2620.4, 3) == "2620"
    assert rounded(1.8e-7) == "0.00000018"
    assert rounded(0.0) == "0"
    assert rounded(0.4, signed=True) == "+0.40"
    assert fixed(-0.0004, 3) == "0.000"
    assert fixed(0.0004, 3, signed=True) == "0.000"
    assert apart(1.0021, 1.0, 2) == ("1.002", "1.000")
    assert apart(1.02, 1.0, 2) == ("1.02", "1.00")
    assert apart(1.0, 1.0, 2) == apart(1.0 + 1e-9, 1.0, 2) == ("1.00", "1.00")
    assert compared(2.738, 5.991, 3) == ("2.74", "5.99")
    assert compared(99.98, 100.0) == ("99.98", "100.00")
    assert compared(100.0, 100.0) == ("100.0", "100.0")


def test_counts_agree_with_their_nouns_and_verbs():
    assert [untested(windows) for windows in (1, 2)] == ["one window cannot test it", "2 windows cannot test it"]
    assert [how_many(*parts) for parts in ((0, 3), (1, 3), (1, 1), (0, 1))] == [
        *("none of 3 heads", "1 of 3 heads", "the only head", "none of 1 head")
    ]
    assert intervals_leave([True, False, True], "layer") == "the intervals of 2 of 3 layers leave"
    assert intervals_leave([True, False]) == "the interval of 1 of 2 heads leaves"
    assert intervals_leave([False, False]) == "the interval of none of 2 heads leaves"
    assert intervals_leave([True]) == "the interval of the only head leaves"


def test_the_effect_that_would_be_counted_is_that_of_the_median_row():
    rows = pl.DataFrame(
        {"low": [-1.0, -2.0, -4.0, None], "high": [1.0, 2.0, 4.0, None], "windows": [9, 9, 9, 1], "size": [2.0] * 4}
    )
    expected = float(detectable_among(torch.tensor(2.0, dtype=torch.float64), 9, 4, 1))
    assert countable_effect(rows, 1) == pytest.approx(expected)
    assert countable_effect(rows, 1, scale="size") == pytest.approx(expected / 2)
    assert countable_effect(rows.tail(1), 0) is None
    assert countable_effect(rows.with_columns(windows=1), 0) is None, "the ends of one window are no interval"
    assert countable_effect(rows, 0) > expected > countable_effect(rows, 3)


def test_an_absence_is_claimed_only_where_something_could_have_been_detected():
    assert no_detection("relation", 0.3, "0.3", 9, most=1.0) == "No relation was detected; 0.3 would have been."
    assert no_detection("relation", 1.0, "1.0", 2, most=1.0) == "2 windows are too few to detect any relation."
    assert no_detection("relation", None, "", 1) == "1 window is too few to detect any relation."
