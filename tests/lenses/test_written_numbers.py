"""Numbers of a sentence: rounded alike, told apart, and absent only where they could have been found."""

from math import nan

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headscope.lenses.shared.absences import absence, limit_clause, uncut_effect
from headscope.lenses.shared.table import most_windows
from headscope.lenses.shared.written_numbers import counted, interval, part_of, percents, side_by_side, significant
from tests.lenses.stated_numbers import detected_by_one_test

numbers = st.floats(-1e4, 1e4).filter(lambda number: abs(number) > 1e-3)


@given(number=numbers, gap=st.floats(1e-3, 1.0))
def test_different_numbers_look_different(number, gap):
    for style in ({"decimals": 0}, {"decimals": 2}):
        low, high = side_by_side((number, number + gap), **style)
        assert float(low) < float(high)


@given(values=st.lists(numbers, min_size=2, max_size=4), decimals=st.integers(0, 3), digits=st.integers(1, 4))
def test_rounding_keeps_an_order(values, decimals, digits):
    ordered = sorted(values)
    for texts in (side_by_side(ordered, decimals=decimals), side_by_side(ordered, digits=digits)):
        written = [float(text) for text in texts]
        assert written == sorted(written)


@pytest.mark.parametrize(
    ("values", "style", "texts"),
    [
        ((225.91, 225.72, 226.09), {}, ("225.9", "225.7", "226.1")),
        ((0.0734, 0.0699, 0.0769), {"decimals": 2}, ("0.073", "0.070", "0.077")),
        ((0.44, 0.43, 0.45), {"decimals": 2}, ("0.44", "0.43", "0.45")),
        ((1.0279, 1.0004, 1.0562, 1.0), {}, ("1.0279", "1.0004", "1.0562", "1")),
        # What differs by rounding alone is the same, and no reason for more digits.
        ((0.8, 0.8 - 1e-12, 0.8 + 1e-12), {"decimals": 2}, ("0.80", "0.80", "0.80")),
        ((-1e-9, 0.0), {"decimals": 1}, ("0.0", "0.0")),
        ((4.13, None, nan), {}, ("4.13", "", "")),
        ((51.93, 6.0), {}, ("51.9", "6")),
    ],
)
def test_known_texts(values, style, texts):
    assert side_by_side(values, **style) == texts


@pytest.mark.parametrize(
    ("number", "digits", "text"),
    [(118.4, 2, "118"), (9.96, 2, "10"), (0.00996, 2, "0.010"), (0.5, 2, "0.50"), (3.0, 3, "3"), (-0.0456, 2, "-0.046"),
     (0.0, 2, "0"), (1234.5678, 3, "1235"), (1e-12, 2, "0")],
)  # fmt: skip
def test_significant_digits(number, digits, text):
    assert significant(number, digits) == text


def test_shares_are_written_in_percent():
    assert percents((0.725, 0.716, 0.734)) == ("72.5 %", "71.6 %", "73.4 %")
    assert percents((0.0, 0.88, None)) == ("0 %", "88 %", "")
    assert percents((1.184, 1e-7)) == ("118 %", "0 %")


def test_an_interval_says_how_many_windows_agree():
    assert interval("0.1", "0.2", 8) == "95 % interval 0.1 to 0.2"
    assert interval("0.1", "0.1", 8) == "in each of 8 windows"
    assert interval("", "", 1) == "no interval"


def test_counts_have_their_plural():
    assert [counted(number, "head") for number in (0, 1, 2)] == ["0 heads", "1 head", "2 heads"]
    assert counted(2, "matrix", "matrices") == "2 matrices"
    assert part_of(1, 1, "head") == "1 of 1 head"
    assert part_of(1, 3, "matrix", "matrices") == "1 of 3 matrices"


def written(size: float) -> str:
    return f"{size:.1f} nats"


@pytest.mark.parametrize(
    ("size", "options", "sentence"),
    [
        (0.5, {}, "No rest was detected; 0.5 nats would have been."),
        (0.5, {"reach": 0.5}, "No rest was detected; 0.5 nats would have been."),
        (0.5, {"reach": 0.4}, "No rest can be shown; even 0.4 nats could be missed."),
        (0.5, {"one_of_many": True}, "No rest was detected; one test alone detects 0.5 nats."),
        (0.0, {}, "No rest in any of 3 windows."),
        (1e-12, {"unit": "text"}, "No rest in any of 3 texts."),
        (None, {"reach": 0.4}, "No rest can be shown: there is no interval."),
    ],
)
def test_an_absence_is_said_where_something_could_have_been_found(size, options, sentence):
    assert absence("rest", size, written, windows=3, **options) == sentence


def test_a_limit_is_what_one_test_detects():
    assert limit_clause(0.5, written) == "one test detects 0.5 nats in four of five texts"
    assert limit_clause(0.5, written, reach=0.4) == "even 0.4 nats, the most that is possible, could be missed"
    assert limit_clause(0.0, written) == "all windows agree"
    assert limit_clause(None, written) == ""


def test_a_cut_interval_detects_no_less():
    """0.02 ± 0.06 and 0.98 ± 0.06, as they are and cut off at 0 and 1."""
    rows = pl.DataFrame({"value": [0.02, 0.98], "low": [-0.04, 0.92], "high": [0.08, 1.04], "windows": [9, 9]})
    cut = rows.with_columns(low=pl.col("low").clip(0), high=pl.col("high").clip(upper_bound=1))
    expected = detected_by_one_test([0.06, 0.06], 9)
    assert uncut_effect(rows) == pytest.approx(expected)
    assert uncut_effect(cut) == pytest.approx(expected)
    assert uncut_effect(cut.with_columns(size=pl.lit(2.0)), scale="size") == pytest.approx(expected / 2)


def test_the_most_windows_of_a_table():
    assert most_windows(pl.DataFrame({"windows": [3, None, 8]})) == 8
    assert most_windows(pl.DataFrame({"windows": []}, schema={"windows": pl.Int64})) == 0
