"""Every number in the sentences of the lens `dependence`, against tables whose numbers are planted."""

from math import nan, sqrt

import polars as pl
import pytest

from headscope.lenses.dependence.sentences import sentences
from headscope.lenses.dependence.tables import SCHEMAS
from tests.lenses.sentence_checks import assert_says, assert_well_formed, countable, detectable

WINDOWS = 12
PLACE = {"stack": "only", "kind": "self", "layer": 0, "head": 0, "samples": 99, "windows": WINDOWS}


def table(name, rows, **common):
    cells = [{key: value for key, value in (PLACE | common | row).items() if key in SCHEMAS[name]} for row in rows]
    return pl.DataFrame(cells, schema=SCHEMAS[name])


def around(value, half, low="low", high="high"):
    return {low: None, high: None} if half is None else {low: value - half, high: value + half}


def joint(value=0.0251, half=0.0052, heads=5, positive=3, quantity="pointwise", **more):
    numbers = {"value": value, "null": 0.0, "detectable": detectable(half, WINDOWS)} | around(value, half)
    return {"layer": None, "head": None, "quantity": quantity, "heads": heads, "positive": positive} | numbers | more


def single(*excesses):
    """Rows of the measure: excess, half of its interval, adjusted p."""
    return [
        {"head": head, "quantity": "pointwise", "excess": excess, "adjusted": p}
        | around(excess, half, "excess_low", "excess_high")
        for head, (excess, half, p) in enumerate(excesses)
    ]


def measure(name, *values, half=0.05):
    return [
        {"head": head, "quantity": name, "value": value, "null": null} | around(value, half)
        for head, (value, null) in enumerate(values)
    ]


def pair(name, *shifts):
    """Rows of pairs: shift, half of its interval, adjusted p, variance, predicted variance."""
    return [
        {"head": head, "quantity": name, "shift": shift, "adjusted": p, "variance": variance}
        | {"predicted_variance": predicted}
        | around(shift, half, "shift_low", "shift_high")
        for head, (shift, half, p, variance, predicted) in enumerate(shifts)
    ]


def said(joint_rows=(), heads=(), pairs=(), windows=WINDOWS):
    rows = {"joint": joint_rows, "heads": heads, "pairs": pairs}
    headlines = sentences({name: table(name, part, windows=windows) for name, part in rows.items()})
    for headline in headlines:
        assert_well_formed(headline)
    return headlines


@pytest.mark.parametrize(
    ("sign", "verdict", "side"), [(1, "get more attention", "above"), (-1, "get less attention", "below")]
)
def test_heads_together(sign, verdict, side):
    cosine = joint(0.0142, 0.0081, quantity="cosine")
    (headline,) = said([joint(sign * 0.0251), cosine])
    ends = sorted((sign * 0.0199, sign * 0.0303))
    assert_says(headline.full, [5, sign * 0.0251, *ends, 12, 3, 5, 0, 0.0142, 0.0061, 0.0223, 12])
    assert headline.full.startswith(f"Keys that depend more on the query {verdict}, beyond what distance explains: ")
    assert "3 of 5 heads lie above 0" in headline.full
    assert_says(headline.short, [0.0251])
    assert f"{verdict}: rank correlation 0.025 {side} chance" in headline.short
    assert headline.effect == pytest.approx(0.0251)


def test_heads_together_show_nothing():
    (headline,) = said([joint(0.0021, 0.0052, positive=1)])
    limit = detectable(0.0052, WINDOWS)
    assert_says(headline.full, [5, 0.0021, -0.0031, 0.0073, 12, 1, 5, 0, limit])
    assert headline.full.startswith("No relation of attention and dependence beyond distance was detected: ")
    assert "1 of 5 heads lies above 0" in headline.full
    assert "cosine" not in headline.full
    assert_says(headline.short, [limit])
    assert headline.effect == 0


def test_heads_together_could_show_nothing():
    (headline,) = said([joint(0.1, 0.9, windows=2, detectable=1.0)], windows=2)
    assert_says(headline.full, [2, 5, 0.1, -0.8, 1.0, 2, 3, 5, 0])
    assert headline.full.startswith("2 windows are too few to detect any relation of attention")
    assert headline.short == "2 windows are too few to detect any relation of attention and dependence beyond distance."


def test_one_head_of_one_stack_of_two():
    (headline,) = said([joint(heads=1, positive=1, stack="enc"), joint(0.5, heads=0, stack="dec")])
    assert_says(headline.full, [0.0251, 0.0199, 0.0303, 12, 0])
    assert "in the only head of enc, the rank" in headline.full
    assert "the only head lies above 0" in headline.full
    (larger,) = said([joint(heads=3, stack="enc"), joint(heads=6, stack="dec")])
    assert "in the mean of 6 heads of dec, the rank" in larger.full


def test_layers_and_missing_intervals_are_no_joint_statement():
    assert said([joint() | {"layer": 0}, joint(half=0.1) | {"low": None, "high": None}, joint() | {"low": nan}]) == ()


EXCESSES = ((0.12, 0.025, 1e-6), (-0.063, 0.014, 0.001), (0.01, 0.02, 0.4), (-0.02, 0.03, 0.3))


def test_single_heads():
    (headline,) = said(heads=single(*EXCESSES))
    limit = countable(0.0225, WINDOWS, 4, 2)
    assert_says(headline.full, [1, 4, 1, limit, 12, -0.063, -0.077, -0.049, 0.12, 0.095, 0.145, 0.0415])
    assert "1 of 4 heads attends more to keys that depend on the query, and 1 less" in headline.full
    assert "run from -0.063 (95 % interval -0.077 to -0.049) in L0.H1 to +0.120" in headline.full
    assert_says(headline.short, [2, 4, 0.0915])
    assert headline.short.startswith(
        "Beyond distance, 2 of 4 heads attend differently to keys that depend on the query; "
    )
    assert "; typical rank correlation 0.09" in headline.short
    assert headline.effect == pytest.approx(0.183 / 4)


@pytest.mark.parametrize(
    ("sign", "sides"),
    [
        (1, "3 of 3 heads attend more to keys that depend on the query, and none less"),
        (-1, "none of 3 heads attends more to keys that depend on the query, and 3 less"),
    ],
)
def test_all_heads_differ(sign, sides):
    (headline,) = said(heads=single(*[(sign * 0.2, 0.04, 0.001)] * 3))
    ends = sorted((sign * 0.16, sign * 0.24))
    assert_says(headline.full, [3, 3, 12, *[sign * 0.2, *ends] * 2, 0.2])
    assert sides in headline.full
    assert "one more" not in headline.full
    assert f"3 of 3 heads attend {'more' if sign > 0 else 'less'} to keys" in headline.short
    assert_says(headline.short, [3, 3, 0.2])


def test_no_head_differs():
    (headline,) = said(heads=single((0.01, 0.02, 0.9), (0.0, 0.02, 0.9)))
    limit = countable(0.02, WINDOWS, 2, 0)
    assert_says(headline.full, [2, limit, 12, 0, -0.02, 0.02, 0.01, -0.01, 0.03, 0.005])
    assert headline.short.startswith("No relation beyond distance in any of 2 heads was detected; ")
    assert_says(headline.short, [2, limit])
    assert headline.effect == 0


def test_no_head_could_be_seen_to_differ():
    (headline,) = said(heads=single(*[(0.01, 0.3, 0.9)] * 8), windows=3)
    assert "3 windows are too few to count one more" in headline.full
    assert_says(headline.full, [8, 3, 3, *[0.01, -0.29, 0.31] * 2, 0.01])
    assert headline.short == "3 windows are too few to detect any relation beyond distance in any of 8 heads."


@pytest.mark.parametrize("p", [0.01, 0.5])
def test_a_single_head(p):
    (headline,) = said(heads=single((0.12, 0.05, p)))
    limit = countable(0.05, WINDOWS, 1, 0)
    assert_says(headline.full, [*([] if p < 0.05 else [1, limit]), 12, 0.12, 0.07, 0.17])
    assert "The difference is +0.12 (95 % interval +0.07 to +0.17) in L0.H0." in headline.full
    if p < 0.05:
        assert headline.short.startswith("Beyond distance, the only head attends more to keys")
        assert headline.short.endswith("; rank correlation 0.12.")
    else:
        assert_says(headline.short, [limit])
        assert "in the only head was detected" in headline.short


def test_untested_heads_and_what_is_no_number():
    assert said(heads=single((0.12, None, None), (nan, 0.1, 0.2))) == ()


NEAR = measure("nearness", (0.6, 0.0), (0.4, 0.0), (0.5, 0.0))


def test_measures_with_distance_included():
    heads = [
        *NEAR,
        *measure("information", (0.4, 0.01), (0.2, 0.03)),
        *measure("trace", (-0.1, None)),
        *measure("cosine", (0.3, 0.2)),
        *measure("pointwise", (0.05, -0.04)),
    ]
    (headline,) = said(heads=heads)
    assert_says(headline.full, [12, 0.5, 0, 0.3, 0.02, -0.1, 0.3, 0.2, 0.05, -0.04, 3, 3])
    assert "-0.10 with Tr(CΣ_ji), 0.30 with the cosine (null 0.20)" in headline.full
    assert "For nearness, the intervals of 3 of 3 heads leave the null out" in headline.full
    assert_says(headline.short, [0.5, 0])
    assert headline.short.startswith("The median head prefers near keys: ")
    assert headline.effect == pytest.approx(0.5)


def test_far_keys_few_heads_and_none():
    (far,) = said(heads=measure("nearness", (-0.5, 0.0)))
    assert far.short.startswith("The median head prefers far keys: ")
    assert_says(far.short, [-0.5, 0])
    assert_says(far.full, [12, -0.5, 0])
    assert "the interval of the only head leaves" in far.full
    (some,) = said(heads=measure("nearness", (0.5, 0.0), (0.01, 0.0), (0.02, 0.0)))
    assert some.short == "In 1 of 3 heads attention prefers near or far keys; chance gives one in twenty."
    assert some.effect == 0
    (none,) = said(heads=measure("nearness", (0.01, 0.0), (0.02, 0.0)))
    assert_says(none.short, [detectable(0.05, WINDOWS)])
    assert_says(none.full, [12, 0.015, 0, 2])
    assert none.short.startswith("No relation of attention and nearness was detected; ")
    (hopeless,) = said(heads=measure("nearness", (0.3, 0.0), half=0.95), windows=2)
    assert hopeless.short == "2 windows are too few to detect any relation of attention and nearness."


def test_nearness_of_one_window():
    (headline,) = said(heads=measure("nearness", (0.3, 0.0), (0.2, 0.0), half=None), windows=1)
    assert_says(headline.full, [1, 0.25, 0])
    assert_says(headline.short, [0.25])
    assert headline.effect is None


def test_without_nearness_scores_or_another_measure_are_told():
    cosine = measure("cosine", (0.3, 0.2))
    (headline,) = said(heads=cosine)
    assert headline.short == "In the median head attention has a rank correlation of 0.30 with the cosine (null 0.20)."
    assert headline.effect is None
    (scored,) = said(heads=cosine, pairs=pair("self", (1.0, 0.1, 0.01, 1.0, 1.0), (1.0, 0.1, 0.01, 1.0, 1.0)))
    assert scored.short.startswith("2 of 2 heads score a token with itself unlike tokens of different windows")
    (none,) = said(pairs=pair("dependent", (1.0, 0.1, 0.6, None, None), (1.0, 0.1, 0.6, None, None)))
    assert none.short.startswith("None of 2 heads scores tokens 1 to 8 apart unlike tokens of different windows")
    assert_says(none.full, [1, 8, 2, 12])


SHIFTS = ((1.0, 0.2, 0.001, 4.0, 4.0), (-1.0, 0.3, 0.001, 9.0, 10.0), (0.1, 0.4, 0.7, 1.0, 2.0))


def test_scores_of_pairs():
    itself = pair("self", *[(2.0, 0.1, 0.001, 0.0, 0.0)] * 2)
    (headline,) = said(heads=NEAR, pairs=[*pair("dependent", *SHIFTS), *itself])
    # Halves of 0.2, 0.3 and 0.4 over deviations of 2, 3 and 1: the median is 0.1.
    limit = countable(0.1, WINDOWS, 3, 2)
    assert_says(
        headline.full.partition("one in twenty. ")[2],
        [1, 8, 1, 3, 1, limit, 12, 2, 2, 12, 1, 8, 0.9, 0.54, 0.99],
    )
    assert "in 1 of 3 heads and lower in 1 (" in headline.full
    assert "in 2 of 2 heads and lower in none (false discovery rate 5 %; 12 windows)" in headline.full
    assert "0.90 times the Gaussian prediction in the median head (0.54 to 0.99 in nine of ten heads)" in headline.full


def test_the_variance_of_a_single_head():
    (headline,) = said(heads=NEAR, pairs=pair("dependent", (0.1, 0.4, 0.7, 2.0, 1.0)))
    limit = countable(0.4 / sqrt(2), WINDOWS, 1, 0)
    assert_says(headline.full.partition("one in twenty. ")[2], [1, 8, 1, limit, 12, 1, 8, 2])
    assert "in none of 1 head and lower in none" in headline.full
    assert headline.full.endswith("2.00 times the Gaussian prediction in the only head.")
