"""Effect sizes: bounded, zero at the null, symmetric where they should be."""

import math

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headscope.lenses.shared.effects import (
    correlation_effect,
    difference_effect,
    excludes_null,
    majority_effect,
    mean_effect,
    median_effect,
    ratio_effect,
    share_effect,
)

shares = st.floats(0, 1)
positive = st.floats(1e-300, 1e300)


@given(null=shares)
def test_a_share_at_its_null_has_no_effect(null):
    assert share_effect(null, null) == 0
    assert share_effect(1.0 if null <= 0.5 else 0.0, null) == 1


@given(a=positive, b=positive)
def test_a_ratio_and_its_inverse_have_the_same_effect(a, b):
    assert ratio_effect(a, b) == ratio_effect(b, a)
    assert 0 <= ratio_effect(a, b) <= 1
    assert ratio_effect(a, a) == 0


def test_known_effects():
    assert ratio_effect(2.0, 1.0) == 0.5
    assert difference_effect(3.0, 1.0, 2.0) == 0.5
    assert difference_effect(1.0, 1.0, 2.0) == 0
    assert correlation_effect(-0.25) == 0.25
    assert correlation_effect(0.5, 0.75) == 0.25
    assert median_effect([0.1, None, 0.5, 0.2]) == pytest.approx(0.2)


def test_what_is_no_number_has_no_effect():
    assert share_effect(math.nan) is None
    assert ratio_effect(math.nan, 1.0) is None
    assert ratio_effect(0.0, 0.0) is None
    assert difference_effect(math.inf, 0.0, 1.0) == 1.0
    assert correlation_effect(math.nan) is None
    assert median_effect([None]) is None
    assert difference_effect(1.0, 0.0, 0.0) is None


def test_undetected_heads_count_as_zero_in_a_mean():
    assert mean_effect([0.5, 0.0, None, 0.1]) == pytest.approx(0.2)
    assert mean_effect([None]) is None


def test_a_median_needs_half_of_the_tests():
    assert majority_effect(0.3, (True, False)) == 0.3
    assert majority_effect(0.3, (True, False, False)) == 0
    assert majority_effect(0.3, ()) is None
    assert majority_effect(None, (True,)) is None


def test_intervals_leave_their_null_out():
    rows = pl.DataFrame(
        {"low": [0.1, -0.1, -0.3, None, 0.1], "high": [0.2, 0.1, -0.2, None, 0.2], "null": [0.0, 0.0, 0.0, 0.0, 0.15]}
    )
    assert excludes_null(rows, "null") == (True, False, True, False)
    assert excludes_null(rows, 0.15) == (False, True, True, False)
    assert excludes_null(rows.with_columns(null=pl.lit(None, dtype=pl.Float64)), "null") == ()
