"""How numbers are written."""

import math

import pytest

from headscope.core.numbers import SYMBOL, cell, count, decimals, number, ranges, visible


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.0, "0"), (-0.0, "0"), (0.4237, "0.424"), (-0.4237, "−0.424"), (12.345, "12.3"), (7.0, "7"),
        (1.234e-7, "1.23×10⁻⁷"), (-5.5e9, "−5\u202f500\u202f000\u202f000"), (1.5e6 + 0.5, "1.50×10⁶"),
        (math.nan, "NaN"), (math.inf, "∞"), (-math.inf, "−∞"),
    ],
)  # fmt: skip
def test_number(value: float, written: str) -> None:
    assert number(value) == written


def test_count_groups_thousands_from_five_digits_on() -> None:
    assert (count(8192), count(49152), count(-10000)) == ("8192", "49\u202f152", "−10\u202f000")


@pytest.mark.parametrize(
    ("values", "digits"),
    [([], 0), ([1.0, 20.0], 0), ([0.12, 0.5], 4), ([32.8, 24.71], 2), ([math.nan, 1.5], 3), ([1e-9, 0.5], None)],
)
def test_decimals_of_a_column(values: list[float], digits: int | None) -> None:
    assert decimals(values) == digits


def test_cell_never_shows_a_number_as_zero_that_is_none() -> None:
    assert cell(1e-6, 2) == "1.00×10⁻⁶"
    assert cell(0.0, 2) == "0.00"
    assert cell(-0.001, 2) == "−0.00100"
    assert cell(None, 2) == "–"
    assert cell(12345.0, 0) == "12\u202f345"


def test_ranges() -> None:
    assert ranges([3, 0, 1, 2, 7, 9, 8]) == "0–3, 7–9"
    assert ranges([5]) == "5"


def test_what_cannot_be_seen_or_written_becomes_a_picture() -> None:
    assert visible("a\x00\n\x7f\ud800b の") == "a␀␊␡\ufffdb の"


def test_symbols_have_an_index_and_names_of_variables_do_not():
    found = [(m["symbol"], m["index"]) for m in SYMBOL.finditer("Tr(CΣ_ji), W_QK, x_i, but d_model and my_x")]
    assert found == [("Σ", "ji"), ("W", "QK"), ("x", "i")]
