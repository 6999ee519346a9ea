"""Sentences claim no more than their intervals: limits of detection, reach without gaps, bounded errors."""

import polars as pl
import pytest
import torch

from headscope.experiments.fewshot import sentences as fewshot
from headscope.lenses.shared.phrases import detectable_effect
from headscope.lenses.transport import sentences as mixed
from headscope.maths.resampling.jackknife import detectable


def test_detectable_effect_is_that_of_the_median_row():
    rows = pl.DataFrame(
        {"low": [-1.0, -2.0, -4.0, None], "high": [1.0, 2.0, 4.0, None], "windows": [9, 9, 9, 1], "size": [2.0] * 4}
    )
    expected = float(detectable(torch.tensor(2.0, dtype=torch.float64), 9))
    assert detectable_effect(rows) == pytest.approx(expected)
    assert detectable_effect(rows, scale="size") == pytest.approx(expected / 2)
    assert detectable_effect(rows.tail(1)) is None
    # The ends of one window are no interval, whatever they hold.
    assert detectable_effect(rows.with_columns(windows=1)) is None


@pytest.mark.parametrize(
    ("half", "said"), [(0.01, "nearly right"), (0.3, "do not bound as tightly"), (None, "no interval")]
)
def test_a_small_error_needs_a_small_interval(half, said):
    ends = {"low": None if half is None else 0.01 - half, "high": None if half is None else 0.01 + half}
    row = {"quantity": "entropy", "stage": "heads", "value": 0.01, **ends}
    assert said in mixed._nearly(pl.DataFrame([row], schema_overrides={"low": pl.Float64, "high": pl.Float64}))


def layers(value, half, number=3):
    return [{"layer": index, "value": value, "low": value - half, "high": value + half} for index in range(number)]


def test_parts_of_a_model_are_compared_by_their_intervals():
    """A quarter more is no difference where intervals are wide, and a twentieth more is one where they are narrow."""
    assert "not detectably otherwise" in fewshot._compared(layers(0.5, 0.2), layers(0.3, 0.2))
    assert fewshot._compared(layers(0.42, 0.005), layers(0.4, 0.005)) == "more on it than the middle"
    assert fewshot._compared(layers(0.38, 0.005), layers(0.4, 0.005)) == "less on it than the middle"


def test_nearness_is_not_claimed_where_nothing_was_detected():
    common = {"value": 0.6, "low": 0.5, "high": 0.7, "uniform": 0.3, "nearness": 0.55, "words": 12}
    rows = [
        {"layer": index, "quantity": name, "beyond_low": -0.05, "beyond_high": 0.15, **common}
        for index in range(3)
        for name in ("inside_share", "across", "inside")
    ]
    headline = fewshot._borders(pl.DataFrame(rows))
    assert headline.effect == 0
    assert headline.short.startswith("No attention to the own shot beyond nearness in most layers was detected; ")
    said = headline.full
    assert "no more than nearness was detected" in said
    assert "would have been, four times in five" in said
    assert "mostly nearness" not in said
