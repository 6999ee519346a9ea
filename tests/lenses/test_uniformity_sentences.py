"""Every number of the sentences of `uniformity`, from planted tables, and the branch of each verdict."""

import polars as pl
import pytest

from headscope.lenses.lens import AS_IS
from headscope.lenses.uniformity.sentences import sentences
from headscope.lenses.uniformity.tables import SCHEMAS
from tests.lenses.stated_numbers import assert_sound, assert_states, detected_by_one_test

WINDOWS = 9
ROUNDING = 0.0000457
# Mean cosines over depth: value, half of the interval, change since the first layer, half of its interval.
COURSE = [(0.0734, 0.0035, 0.0, 0.0), (0.55, 0.02, 0.4766, 0.02), (0.466, 0.015, 0.3926, 0.016)]
FRESH = [(0.13, 0.01), (0.3, 0.01), (0.64, 0.01)]
# What distinguishes tokens at the end of each form, half of the interval, change from the model as it is, its half.
ENDS = {
    AS_IS: (0.727, 0.004, 0.2, 0.01), "without skips": (0.194, 0.034, -0.531, 0.03),
    "without mlp": (0.69, 0.03, -0.035, 0.08), "without attention": (0.75, 0.01, 0.025, 0.02),
    "attention alone": (0.11, 0.011, -0.615, 0.02),
}  # fmt: skip
# Factor, half of its interval, prediction, ratio and half of its interval.
FACTORS = {
    "attention alone": (0.421, 0.0096, 0.476, 0.885, 0.013), "without mlp": (0.725, 0.017, 0.706, 1.0279, 0.0275),
    "without skips": (0.486, 0.024, 0.522, 0.931, 0.05), AS_IS: (0.741, 0.005, 0.772, 0.96, 0.01),
}  # fmt: skip


def place(stack, layer):
    return {"stack": stack, "kind": "self", "layer": layer}


def stream_rows(course, fresh, ends, windows, stack):
    def intervals(value, half, change=None, change_half=None):
        if windows < 2 or value is None:
            return {"value": value}
        row = {"value": value, "low": value - half, "high": value + half}
        if change is not None:
            row |= {"change": change, "change_low": change - change_half, "change_high": change + change_half}
        return row

    for layer, cells in enumerate(course):
        yield place(stack, layer) | {"variant": AS_IS, "quantity": "mean_cosine", **intervals(*cells)}
    for layer, cells in enumerate(fresh):
        yield place(stack, layer) | {"variant": "initialised", "quantity": "mean_cosine", **intervals(*cells)}
    for variant, cells in ends.items():
        for layer in (0, 2):
            numbers = intervals(*cells) if layer else {"value": 0.99}
            yield place(stack, layer) | {
                "variant": variant,
                "quantity": "residual_share",
                "rounding": ROUNDING,
                **numbers,
            }


def rate_rows(factors, windows, stack):
    for variant, (value, half, predicted, ratio, ratio_half) in factors.items():
        ends = {"low": value - half, "high": value + half} if windows > 1 else {}
        if windows > 1:
            ends |= {"ratio_low": ratio - ratio_half, "ratio_high": ratio + ratio_half}
        yield place(stack, None) | {
            "variant": variant, "quantity": "factor_over_depth", "value": value, "predicted": predicted, "ratio": ratio,
            **ends,
        }  # fmt: skip


def said(course=COURSE, fresh=FRESH, ends=ENDS, factors=FACTORS, windows=WINDOWS, stack="only"):
    streams = [row | {"windows": windows} for row in stream_rows(course, fresh, ends, windows, stack)]
    rates = [row | {"windows": windows} for row in rate_rows(factors, windows, stack)]
    tables = {
        "streams": pl.DataFrame(streams, schema=SCHEMAS["streams"]),
        "rates": pl.DataFrame(rates, schema=SCHEMAS["rates"]),
    }
    headlines = sentences(tables)
    for headline in headlines:
        assert_sound(headline)
    return headlines


def changed(cells, **numbers):
    """Cells of one row with other numbers in some places."""
    names = ("value", "half", "change", "change_half")
    return tuple(numbers.get(name, cell) for name, cell in zip(names, cells, strict=True))


LAST = COURSE[-1]


def test_the_course_of_the_cosine_is_stated():
    growth = said()[0]
    assert_states(
        growth.full, WINDOWS, 0.0734, 95, 0.0699, 0.0769, 0.466, 95, 0.451, 0.481, 0.55, 0, 0.13, 0.64, 72.7, 95, 72.3,
        73.1,
    )  # fmt: skip
    assert (
        "tokens grow more alike with depth: two of them have a mean cosine of 0.073 (95 % interval 0.070" in growth.full
    )
    assert "at most 0.55 in L1 (independent tokens: 0; freshly initialised: 0.13 at" in growth.full
    assert growth.full.endswith("still distinguishes them, so they do not become one.")
    assert (
        growth.short
        == "Tokens grow more alike: their mean cosine goes from 0.07 at the first layer to 0.47 after the last."
    )
    assert growth.effect == pytest.approx(0.466 - 0.0734)


def test_tokens_may_grow_less_alike_and_need_no_other_form():
    growth = said([(0.466, 0.015, 0.0, 0.0), (0.0734, 0.0035, -0.3926, 0.016)], fresh=[], stack="dec")[0]
    assert growth.full.startswith("Over 9 windows, tokens of the decoder grow less alike with depth: ")
    assert "(independent tokens: 0). 72.7 %" in growth.full
    assert "at most" not in growth.full
    assert growth.short.startswith("Tokens grow less alike: their mean cosine goes from 0.47 at the first")


@pytest.mark.parametrize(("half", "limit", "short"), [
    (0.5, "one test detects {:.2f} in four of five texts", "was detected; {:.2f} would have been."),
    (1.8, "even 2, the most that is possible, could be missed", "can be shown; even 2 could be missed."),
])  # fmt: skip
def test_a_change_that_was_not_detected(half, limit, short):
    growth = said([COURSE[0], changed(LAST, change_half=half)])[0]
    size = detected_by_one_test([half], WINDOWS)
    assert f"tokens do not detectably change their likeness ({limit.format(size)}): two" in growth.full
    assert growth.short == f"No change of the mean cosine of two tokens with depth {short.format(size)}"
    assert growth.effect == 0


@pytest.mark.parametrize(("share", "half", "outcome"), [
    (0.05, 0.02, " distinguishes them, so they have become nearly one."), (0.09, 0.02, " distinguishes them."),
    (0.11, 0.02, " distinguishes them."), (0.13, 0.02, " distinguishes them, so they do not become one."),
    (None, None, "Less than 0.005 % (rounding) of their length still distinguishes them, so they have become nearly "
                 "one."),
])  # fmt: skip
def test_tokens_become_one_where_the_interval_says_so(share, half, outcome):
    assert said(ends=ENDS | {AS_IS: (share, half, 0.1, 0.01)})[0].full.endswith(outcome)


def test_what_parts_do_is_stated():
    causes = said()[1]
    limit = 100 * detected_by_one_test([0.08], WINDOWS)
    assert_states(
        causes.full, WINDOWS, 72.7, 95, 72.3, 73.1, 19.4, 95, 16, 22.8, 69, 95, 66, 72, 75, 95, 74, 76, 11, 95, 9.9,
        12.1, limit,
    )  # fmt: skip
    assert (
        "skip connections kept them apart; feed-forward parts made no difference that was detected (one test"
        in causes.full
    )
    assert causes.full.endswith("; attention brought them together.")
    assert_states(causes.short, 19.4, 72.7)
    assert causes.short.startswith("Without skip connections, 19 % of vectors' length distinguishes tokens at the end;")
    assert causes.effect == pytest.approx((0.727 - 0.194) / 0.727)


@pytest.mark.parametrize(("half", "short"), [
    (0.2, "was detected; {:.0f} points would have been."), (0.9, "can be shown; even 100 points could be missed."),
])  # fmt: skip
def test_parts_of_which_none_has_an_effect(half, short):
    ends = {name: changed(cells, change=0.01, change_half=half if name == "without mlp" else 0.05)
            for name, cells in ENDS.items()}  # fmt: skip
    causes = said(ends=ends)[1]
    # The least certain part: what it would have taken holds for the others, too.
    limit = 100 * detected_by_one_test([half], WINDOWS)
    assert causes.short == f"No effect of any part on how far apart tokens end {short.format(limit)}"
    assert causes.effect == 0


def test_a_part_that_was_tested_speaks_before_one_that_was_not():
    causes = said(ends=ENDS | {"without skips": (0.194, 0.034, None, None)})[1]
    assert causes.short.startswith("Without attention, 75 % of vectors' length")
    assert causes.effect == pytest.approx((0.75 - 0.727) / 0.727)


def test_attention_alone_speaks_where_no_part_was_left_out():
    causes = said(ends={name: ENDS[name] for name in (AS_IS, "attention alone")})[1]
    assert_states(causes.full, WINDOWS, 72.7, 95, 72.3, 73.1, 11, 95, 9.9, 12.1)
    assert "Compared" not in causes.full
    assert causes.short.startswith("With attention alone, 11 % of vectors' length")
    assert len(said(ends={AS_IS: ENDS[AS_IS]})) == 2
    assert len(said(ends={"without mlp": ENDS["without mlp"]})) == 1


def test_what_can_be_rounding_is_bounded():
    below = said(ends=ENDS | {"without skips": (None, None, None, None)})[1]
    assert_states(
        below.full, WINDOWS, 72.7, 95, 72.3, 73.1, 0.005, 69, 95, 66, 72, 75, 95, 74, 76, 11, 95, 9.9, 12.1,
        100 * detected_by_one_test([0.08], WINDOWS),
    )  # fmt: skip
    assert "without skip connections less than 0.005 % (rounding)" in below.full
    assert "skip connections kept them apart" in below.full
    assert below.short == (
        "Without skip connections, under 0.005 % of vectors' length distinguishes tokens at the end; as trained 73 %."
    )
    usual = said(ends=ENDS | {AS_IS: (None, None, None, None), "without attention": (0.75, 0.01, None, None)})[1]
    assert "attention brought them together" in usual.full
    near = said(ends=ENDS | {AS_IS: (None, None, None, None), "without attention": (0.00004, 0.00001, None, None)})[1]
    assert "attention made no difference that was detected (one of them can be rounding)" in near.full
    both = said(ends={AS_IS: (None,) * 4, "without mlp": (None,) * 4})[1]
    assert "feed-forward parts cannot be judged without an interval" in both.full
    assert both.short == (
        "As trained and without feed-forward parts, under 0.005 % of vectors' length distinguishes tokens at the end: "
        "rounding."
    )
    assert both.effect is None


def test_factors_are_stated_next_to_their_predictions():
    rates = said()[2]
    assert_states(
        rates.full, WINDOWS, 0.421, 95, 0.4114, 0.4306, 0.476, 0.885, 95, 0.872, 0.898, 0.725, 95, 0.708, 0.742, 0.706,
        1.0279, 95, 1.0004, 1.0554, 0.486, 95, 0.462, 0.51, 0.522, 0.741, 95, 0.736, 0.746, 0.772,
    )  # fmt: skip
    assert "in attention alone, which is less than averaging gives: 0.885 times the prediction" in rates.full
    assert (
        "which is more than averaging gives: 1.0279 times the prediction (95 % interval 1.0004 to 1.0554)" in rates.full
    )
    assert "leaves out: 0.486 (95 % interval 0.462 to 0.510; predicted 0.522) in the model without skip" in rates.full
    assert_states(rates.short, 0.421, 0.476)
    assert rates.effect == pytest.approx(1 - 0.885)


def test_a_factor_that_is_not_told_from_averaging():
    rates = said(factors=FACTORS | {"attention alone": (0.48, 0.0096, 0.476, 1.008, 0.05)}, stack="enc")[2]
    limit = 100 * detected_by_one_test([0.05], WINDOWS)
    times = "1.01 times the prediction (95 % interval 0.96 to 1.06; one test detects"
    assert f"is not told from averaging: {times} {limit:.1f} % in four of five texts)" in rates.full
    assert "from layer to layer of the encoder the differences" in rates.full
    assert (
        rates.short
        == f"No difference of attention alone from pure averaging was detected; {limit:.1f} % would have been."
    )
    assert rates.effect == 0


def test_forms_with_feed_forward_parts_are_not_judged():
    rates = said(factors={AS_IS: FACTORS[AS_IS]})[2]
    assert_states(rates.full, WINDOWS, 0.741, 95, 0.736, 0.746, 0.772)
    assert rates.full.endswith("in the model as it is; the prediction leaves out feed-forward parts.")
    assert_states(rates.short, 0.741, 0.772)
    assert rates.effect is None
    unpredicted = FACTORS | {"attention alone": (0.421, 0.0096, None, 0.885, 0.013)}
    assert said(factors=unpredicted)[2].short.startswith("In the model without feed-forward parts, differences")
    assert len(said(factors={})) == 2
    assert len(said(factors={AS_IS: (0.741, 0.005, None, 0.96, 0.01)})) == 2


def test_one_window_gives_no_verdict():
    growth, causes, rates = said(windows=1)
    assert_states(growth.full, 1, 0.0734, 0.466, 0.55, 0, 0.13, 0.64, 72.7)
    assert "tokens cannot be said to grow more or less alike without an interval: two" in growth.full
    assert growth.full.endswith("% of their length still distinguishes them.")
    assert_states(growth.short, 0.0734, 0.466)
    assert_states(causes.full, 1, 72.7, 19.4, 69, 75, 11)
    assert "skip connections, feed-forward parts and attention cannot be judged without an interval." in causes.full
    assert_states(rates.full, 1, 0.421, 0.476, 0.725, 0.706, 0.486, 0.522, 0.741, 0.772)
    assert rates.full.count("cannot be compared with averaging without an interval") == 2
    for headline in (growth, causes, rates):
        assert headline.short.endswith("(no interval).")
        assert headline.effect is None
    # A value without an interval says nothing about one below rounding, either.
    below = said(ends=ENDS | {"without skips": (None, None, None, None)}, windows=1)[1]
    assert "kept them apart" not in below.full
    assert below.short.endswith("as trained 73 % (no interval).")


def test_an_interval_without_width_is_the_number_of_windows():
    rates = said(factors=FACTORS | {"attention alone": (0.421, 0.0, 0.476, 0.885, 0.0)})[2]
    assert "of 0.421 (in each of 9 windows; predicted 0.476) in attention alone, which is less" in rates.full
    assert "0.885 times the prediction (in each of 9 windows)" in rates.full
