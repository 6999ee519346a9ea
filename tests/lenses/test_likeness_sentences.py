"""Every number in the sentences of the lens `likeness`, against tables whose numbers are planted."""

from math import nan

import polars as pl
import pytest
from scipy import stats

from headscope.lenses.likeness.lens import SCHEMA
from headscope.lenses.likeness.sentences import sentences
from tests.lenses.sentence_checks import assert_says, assert_well_formed, countable

WINDOWS = 11
# Value, half of its interval, spread, adjusted p, isotropic, folded.
ITSELF = [
    (1.0, 0.2, 2.0, 0.001, 0.3, 0.1),
    (-0.9, 0.1, 1.0, 0.002, 0.2, -0.1),
    (0.3, 0.4, 1.0, 0.3, 0.1, 0.1),
    (0.1, 0.2, 0.5, 0.6, 0.1, 0.1),
]


def rows_of(distance, rows, windows):
    return [
        {"stack": "only", "kind": "self", "layer": 0, "head": head, "distance": distance, "value": value}
        | {"low": None if half is None else value - half, "high": None if half is None else value + half}
        | {"spread": spread, "effect": value / spread if spread else None, "adjusted": p, "p": p}
        | {"isotropic": isotropic, "folded": folded, "pairs": 99, "windows": windows}
        for head, (value, half, spread, p, isotropic, folded) in enumerate(rows)
    ]


def said(*rows_by_distance, windows=WINDOWS):
    rows = [row for distance, rows in rows_by_distance for row in rows_of(distance, rows, windows)]
    headlines = sentences({"heads": pl.DataFrame(rows, schema=SCHEMA)})
    for headline in headlines:
        assert_well_formed(headline)
    return headlines


def near(*rows):
    return [(*row, None, None) for row in rows]


def test_a_token_with_itself():
    headline = said((0, ITSELF))[0]
    # Halves of 0.1, 0.1, 0.4 and 0.4 spreads: the median is 0.25.
    limit = countable(0.25, WINDOWS, 4, 2)
    assert_says(headline.full, [0.25, 4, 11, -0.9, -1.0, -0.8, 0.5, 0.4, 0.6, 1, 4, 1, limit])
    assert "runs from -0.90 (95 % interval -1.00 to -0.80) in L0.H1 to +0.50 (" in headline.full
    assert "1 of 4 heads scores it higher and 1 lower" in headline.full
    assert_says(headline.short, [2, 4, 0.7])
    assert "score a token with itself differently from an unrelated one, typically by" in headline.short
    assert headline.effect == pytest.approx((0.5 / 1.5 + 0.9 / 1.9) / 4)


@pytest.mark.parametrize(
    ("sign", "side", "counts"),
    [
        (1, "higher than", "3 of 3 heads score it higher and none lower"),
        (-1, "lower than", "None of 3 heads scores it higher and 3 lower"),
    ],
)
def test_all_heads_on_one_side(sign, side, counts):
    headline = said((0, near(*[(sign * 2.0, 0.5, 4.0, 0.001)] * 3)))[0]
    ends = sorted((sign * 0.375, sign * 0.625))
    assert_says(headline.full, [sign * 0.5, 3, 11, *[sign * 0.5, *ends] * 2, 3, 3])
    assert counts in headline.full
    assert "one more" not in headline.full, "no head is left"
    assert_says(headline.short, [3, 3, 0.5])
    assert f"score a token with itself {side} an unrelated one" in headline.short


def test_no_clear_head():
    headline = said((0, near((0.1, 0.4, 1.0, 0.7), (-0.2, 0.4, 1.0, 0.7))))[0]
    limit = countable(0.4, WINDOWS, 2, 0)
    assert_says(headline.full, [-0.05, 2, 11, -0.2, -0.6, 0.2, 0.1, -0.3, 0.5, 2, limit])
    assert "None of 2 heads scores it higher and none lower" in headline.full
    assert headline.short.startswith("No head that scores a token with itself unlike an unrelated one was detected; ")
    assert_says(headline.short, [limit])
    assert headline.effect == 0


def test_windows_that_could_show_nothing():
    headline = said((0, near(*[(0.1, 0.9, 1.0, 0.9)] * 20)), windows=2)[0]
    assert_says(headline.full, [0.1, 20, 2, *[0.1, -0.8, 1.0] * 2, 20, 2])
    assert "2 windows are too few to count one more" in headline.full
    assert headline.short.startswith("2 windows are too few to detect any head that scores a token with itself")
    assert headline.effect == 0


@pytest.mark.parametrize(("value", "side"), [(0.3, "above"), (-0.3, "below")])
def test_one_window(value, side):
    itself, distance = said(*((at, near(*[(value, None, 1.0, None)] * 2)) for at in (0, 1)), windows=1)
    assert_says(itself.full, [value, 2, 1, value, value, 1])
    assert itself.full.endswith("With 1 window no head could be tested.")
    assert_says(itself.short, [0.3])
    assert f"0.30 score spreads {side} an unrelated one" in itself.short
    assert itself.effect is None
    assert_says(distance.full, [2, value, 1, 1])
    assert "at 1 (not tested) (in spreads of its scores; 1 window)" in distance.full
    assert f"scores neighbouring tokens 0.30 score spreads {side} unrelated ones" in distance.short


@pytest.mark.parametrize(
    ("p", "verdict"), [(0.01, "The only head scores it higher and none lower"), (0.6, "None of 1 head scores")]
)
def test_one_head(p, verdict):
    itself, distance = said(*((at, near((1.0, 0.2, 2.0, p))) for at in (0, 4)))
    limit = [] if p < 0.05 else [countable(0.1, WINDOWS, 1, 0)]
    counts = [] if p < 0.05 else [1]
    assert_says(itself.full, [0.5, 0.4, 0.6, 11, *counts, *limit])
    assert (
        " by +0.50 (95 % interval +0.40 to +0.60) times the spread of its scores in the only head, L0.H0 ("
        in itself.full
    )
    assert verdict in itself.full
    assert_says(itself.short, limit or [0.5])
    assert_says(distance.full, [0.5, 4, *counts, 0, *limit, 11])
    assert "the only head scores related tokens" in distance.full
    assert_says(distance.short, [4, *(limit or [0.5])])
    if p < 0.05:
        assert (
            itself.short
            == "The only head scores a token with itself higher than an unrelated one, by 0.50 score spreads."
        )


def test_the_weights():
    """Isotropic has the right sign in one of two clear heads, folded in both; each interval is of two cases."""
    headline = said((0, ITSELF))[1]
    one, two = (stats.beta.ppf((0.025, 0.975), (right, right + 1), (3 - right, 2 - right)) for right in (1, 2))
    assert_says(headline.full, [2, 1, 2 * one[0], 2 * one[1], 1, 2, 2 * two[0], 2])
    assert_says(headline.short, [1, 2])
    assert headline.short.endswith("in 1 of 2 cases, too few to tell.")
    assert headline.effect == 0


def test_weights_that_tell():
    headline = said((0, [(1.0, 0.2, 2.0, 0.001, 0.1, -0.1)] * 9))[1]
    low, high = 9 * 0.025 ** (1 / 9), 9 * (1 - 0.025 ** (1 / 9))
    assert_says(headline.full, [9, 9, low, 9, 4.5, 0, 0, high])
    assert_says(headline.short, [9, 9, 4.5])
    assert headline.effect == pytest.approx(1)
    wrong = said((0, [(1.0, 0.2, 2.0, 0.001, -0.1, -0.1)] * 9))[1]
    assert_says(wrong.short, [0, 9, 4.5])
    assert wrong.effect == pytest.approx(1)
    half = said((0, [(1.0, 0.2, 2.0, 0.001, -0.1, -0.1)] * 4 + [(1.0, 0.2, 2.0, 0.001, 0.1, -0.1)] * 5))[1]
    assert half.short.endswith("in 5 of 9 cases; 8 would beat guessing.")
    assert_says(half.short, [5, 9, 8])


def test_weights_of_one_clear_head():
    headline = said((0, [ITSELF[0], *near((0.0, 0.1, 1.0, 0.9))]))[1]
    assert headline.full.startswith("Of 1 head that clearly scores a token with itself higher or lower, ")
    assert_says(headline.full, [1, 1, 0.025, 1, 0.5, 1, 0.025, 1])
    assert headline.short.endswith("in 1 of 1 case, too few to tell.")


def test_other_distances():
    first = near((0.5, 0.1, 1.0, 0.001), (0.3, 0.1, 1.0, 0.001), (0.1, 0.2, 1.0, 0.3))
    second = near((-0.2, 0.1, 1.0, 0.6), (-0.1, 0.3, 1.0, 0.6), (0.1, 0.2, 1.0, 0.6))
    (headline,) = said((1, first), (16, second))
    limits = countable(0.1, WINDOWS, 3, 2), countable(0.2, WINDOWS, 3, 0)
    assert_says(headline.full, [3, 0.3, 1, 2, 3, 0, limits[0], -0.1, 16, 3, 0, limits[1], 11])
    assert "(2 of 3 heads above 0 and none below; one more" in headline.full
    assert_says(headline.short, [2, 3, 0.4])
    assert "score neighbouring tokens higher than unrelated ones" in headline.short
    assert headline.effect == pytest.approx((0.5 / 1.5 + 0.3 / 1.3) / 3)


def test_nothing_is_said_of_what_is_no_number():
    assert said((0, [(nan, nan, 1.0, nan, nan, nan)] * 2), (1, near((0.0, 0.0, 0.0, None)))) == ()
    assert len(said((0, [(1.0, 0.2, 2.0, 0.001, nan, 0.1)]))) == 1, "no prediction, no sentence about it"
