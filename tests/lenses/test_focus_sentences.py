"""Every number in the sentences of the lens `focus`, against tables whose numbers are planted."""

from math import nan

import polars as pl
import pytest

from headscope.lenses.focus.sentences import sentences
from headscope.lenses.focus.tables import SCHEMA
from tests.lenses.sentence_checks import assert_says, assert_well_formed

# Value, half of its interval, uniform.
FIRST = [(0.882, 0.0028, 0.011), (0.01, 0.004, 0.013), (0.022, 0.02, 0.012), (0.6, 0.2, 0.012)]
ENTROPY = [(0.0335, 0.0007, 1.0), (0.97, 0.001, 1.0), (0.7, 0.1, 1.0)]
BANDS = [(0.1, 0.01, 0.05), (0.3, 0.01, 0.05)]


def said(windows=9, **quantities):
    rows = [
        {
            "stack": "only",
            "kind": "self",
            "layer": 0,
            "head": head,
            "quantity": name,
            "value": value,
            "uniform": uniform,
        }
        | {"low": None if half is None else max(0.0, value - half)}
        | {"high": None if half is None else min(1.0, value + half), "rows": 99, "windows": windows}
        for name, numbers in quantities.items()
        for head, (value, half, uniform) in enumerate(numbers)
    ]
    headlines = sentences({"heads": pl.DataFrame(rows, schema=SCHEMA)})
    for headline in headlines:
        assert_well_formed(headline)
    return headlines


def test_mass_on_the_first_token():
    first, entropy, band = said(first=FIRST, entropy_share=ENTROPY, band_1=FIRST, band_8=BANDS, band_64=FIRST)
    assert_says(first.full, [4, 31.1, 1.2, 9, 2, 4, 1, 88.2, 87.92, 88.48])
    assert (
        "2 of 4 heads put more than half of their mass there; the interval lies above one half in 1 of them"
        in first.full
    )
    assert "L0.H0 puts the most there, 88.20 % (95 % interval 87.92 % to 88.48 %)" in first.full
    assert_says(first.short, [31.1, 1.2])
    assert first.effect == pytest.approx((0.311 - 0.012) / 0.988)
    assert_says(entropy.full, [3, 70, 100, 9, 3.35, 3.28, 3.42, 97, 96.9, 97.1])
    assert (
        "The sharpest is L0.H0 with 3.35 % (95 % interval 3.28 % to 3.42 %), the flattest L0.H1 with 97.0"
        in entropy.full
    )
    assert_says(entropy.short, [70, 100])
    assert entropy.effect == pytest.approx(0.3)
    assert_says(band.full, [2, 20, 8, 5, 9, 2, 30, 29, 31])
    assert "None of 2 heads puts more than half of its mass there. L0.H1" in band.full
    assert_says(band.short, [20, 8, 5])
    assert "within 8 tokens" in band.short


@pytest.mark.parametrize(
    ("rows", "counts"),
    [
        (
            [(0.9, 0.1, 0.1)] * 3,
            "3 of 3 heads put more than half of their mass there; the interval lies above one half in all",
        ),
        (
            [(0.7, 0.3, 0.1)] * 3,
            "3 of 3 heads put more than half of their mass there; the interval lies above one half in none",
        ),
        (
            [(0.7, 0.1, 0.1), (0.1, 0.1, 0.1)],
            "1 of 2 heads puts more than half of its mass there; its interval lies above",
        ),
        (
            [(0.7, 0.3, 0.1), (0.1, 0.1, 0.1)],
            "1 of 2 heads puts more than half of its mass there; its interval does not lie",
        ),
        ([(0.7, None, 0.1), (0.1, None, 0.1)], "1 of 2 heads puts more than half of its mass there. L0.H0"),
    ],
)
def test_heads_above_one_half(rows, counts):
    (first,) = said(first=rows)
    assert counts in first.full


def test_one_head():
    first, entropy = said(first=FIRST[:1], entropy_share=ENTROPY[:1])
    assert_says(first.full, [88.2, 87.92, 88.48, 9, 1.1])
    assert first.full.startswith("The only head, L0.H0, puts 88.20 % of its mass on the first token (")
    assert_says(first.short, [88.2, 1.1])
    assert_says(entropy.full, [3.35, 3.28, 3.42, 9, 100])
    assert entropy.full.startswith("The only head, L0.H0, has 3.35 % of the largest possible entropy (")
    assert_says(entropy.short, [3.35, 100])


def test_one_window():
    first, entropy = said(windows=1, first=[(0.9, None, 0.1), (0.1, None, 0.1)], entropy_share=[(0.5, None, 1.0)] * 2)
    assert_says(first.full, [2, 50, 10, 1, 1, 2, 90])
    assert "90 % (no interval: too few windows)" in first.full
    assert_says(entropy.full, [2, 50, 100, 1, 50, 50])


def test_windows_that_agree_and_uniform_attention():
    """An interval without width is no interval; attention at its null is told as such, and near it as not."""
    first, entropy = said(first=[(1.0, 0.0, 0.1)] * 2, entropy_share=[(1.0, 0.0, 1.0)] * 2)
    assert_says(first.full, [2, 100, 10, 9, 2, 2, 100, 9])
    assert "100 % (the same in all 9 windows)" in first.full
    assert_says(entropy.full, [2, 100, 100, 9, 100, 9, 100, 9])
    assert entropy.effect == 0
    (near,) = said(entropy_share=[(0.9998, 0.0001, 1.0)] * 2)
    assert near.short == "The median head has 99.98 % of the largest possible entropy; uniform attention has 100.00 %."
    assert_says(near.full, [2, 99.98, 100, 9, *[99.98, 99.97, 99.99] * 2])
    (small,) = said(first=[(0.0000312, 0.00001, 0.0004)] * 2)
    assert_says(small.short, [0.00312, 0.04])


def test_nothing_is_said_of_what_is_no_number():
    empty = [(nan, None, 0.1)] * 2
    assert said(first=empty, entropy_share=empty, band_8=empty) == ()
    (first,) = said(first=[*FIRST, *empty])
    assert_says(first.full, [4, 31.1, 1.2, 9, 2, 4, 1, 88.2, 87.92, 88.48])
