"""Every number of the sentences of `preconditioning`, from planted tables, and the branch of each verdict."""

import polars as pl
import pytest

from headscope.lenses.preconditioning.lens import SCHEMAS
from headscope.lenses.preconditioning.sentences import sentences
from tests.lenses.stated_numbers import assert_sound, assert_states, detected_by_one_test, numbers_of

WINDOWS, GROUPS, GAUSSIANS = 12, 37, 5
LEFT = {"value": 3.637, "null": 5.406}
BIAS = 0.61
DIMENSIONS = {"value": 13.24, "low": 9.03, "high": 17.45, "null": 25.02}
ENTROPY = {"value": -4.31, "low": -5.2, "high": -3.4, "null": -2.04}
DEEPER = {"value": 10.03, "low": 7.31, "high": 12.75, "null": 14.93}
DEEPER_ENTROPY = {"value": 1.2, "low": -0.1, "high": 2.5, "null": 3.6}


def information(left, half):
    """What the previous token tells; the interval reaches up by a bias as well."""
    told = left["null"] - left["value"]
    ends = {} if half is None else {"low": told - half, "high": told + half + BIAS}
    return {"value": told, "null": 0.0, **ends}


def said(
    half=0.06, excluded=(0.695, 0.761), carry=(36.6, 34.1, 39.2, 79.2), left=LEFT, windows=WINDOWS, groups=GROUPS,
    embeddings=(DIMENSIONS, ENTROPY), last=(DEEPER, DEEPER_ENTROPY), gaussians=GAUSSIANS,
):  # fmt: skip
    text = {
        "conditional_entropy_nats": left, "information_nats": information(left, half),
        "continuations_90": dict(zip(("value", "low", "high", "null"), carry, strict=True)),
        "five_excluded_90": {"value": excluded[0], "null": excluded[1]}, "counted_share": {"value": 0.764},
    }  # fmt: skip
    rows = [{"quantity": name, "groups": groups, "windows": windows, **cells} for name, cells in text.items()]
    tables = {"text": pl.DataFrame(rows, schema=SCHEMAS["text"])}
    if embeddings is not None:
        streams = [
            {"stack": "only", "kind": "self", "layer": layer, "quantity": quantity, "groups": gaussians,
             "windows": windows, **cells}
            for layer, stream in ((0, embeddings), (2, (DIMENSIONS, ENTROPY)), (4, last))
            for quantity, cells in zip(("effective_dimension", "entropy_nats"), stream, strict=False)
        ]  # fmt: skip
        tables["layers"] = pl.DataFrame(streams, schema=SCHEMAS["layers"])
    headlines = sentences(tables)
    for headline in headlines:
        assert_sound(headline)
    return headlines


def test_what_the_last_token_tells_is_stated():
    told = said()[0]
    assert_states(told.full, 1.769, 95, 1.709, 2.439, WINDOWS, LEFT["value"], LEFT["null"], GROUPS, 76.4)
    assert "the last token tells 1.77 nats about the next (95 % interval 1.71 to 2.44; 12 windows)." in told.full
    assert_states(told.short, 1.769, LEFT["null"])
    assert told.effect == pytest.approx(1.769 / 5.406)


def test_the_numbers_subtract_and_stay_inside_a_narrow_interval():
    """Rounded to two decimals 5.4149 − 3.6351 is 1.77, outside the interval around 1.7798."""
    told = said(half=0.002, left={"value": 3.6351, "null": 5.4149})[0]
    gain, _, low, high, _, rest, null = (float(text) for text in numbers_of(told.full)[:7])
    assert gain == pytest.approx(null - rest, abs=1e-9)
    assert low <= gain <= high
    assert low == pytest.approx(1.7778, abs=0.0005)
    assert f"removes {gain:.3f} of {null:.3f} nats" in told.short


@pytest.mark.parametrize(("half", "seen"), [
    (2.0, "No information of the last token about the next was detected; {} nats would have been."),
    (5.0, "No information of the last token about the next can be shown; even {} nats could be missed."),
])  # fmt: skip
def test_information_that_may_be_none_is_not_called_none(half, seen):
    """The test is about the lower half of the interval: the upper one has the bias in it."""
    told = said(half=half)[0]
    limit = detected_by_one_test([half], WINDOWS)
    size = min(limit, LEFT["null"])
    assert told.short == seen.format(f"{size:.1f}")
    assert (limit > LEFT["null"]) == ("can be shown" in told.short)
    assert told.effect == 0
    ends = 1.769 - half, 1.769 + half + BIAS
    assert_states(told.full, 1.769, 95, *ends, WINDOWS, size, LEFT["value"], LEFT["null"], GROUPS, 76.4)
    assert "no information of the last token about the next is detected: 1.77 nats" in told.full
    assert "tells" not in told.full


def test_five_continuations_are_excluded_for_a_share_of_the_pairs():
    excluded = said()[1]
    assert_states(excluded.full, 70, 5, 90, 76, 30, WINDOWS, 36.6, 90, 95, 34.1, 39.2, 79.2)
    assert_states(excluded.short, 69.5, 76.1)
    assert excluded.effect is None
    # The shares that the text decides and does not decide make up all pairs as they are written.
    assert "for the other 30 % this text does not decide" in excluded.full
    assert "for the other 30.6 % this text" in said(excluded=(0.694, 0.692))[1].full


def test_nothing_excluded_is_said_with_what_was_tested():
    excluded = said(excluded=(0.0, 0.43))[1]
    assert_states(excluded.full, 5, 90, 0, 43, 76, WINDOWS, 36.6, 90, 95, 34.1, 39.2, 79.2)
    assert "it was tested for 76 % (12 windows)" in excluded.full
    assert excluded.short == (
        "After 0 % of tokens, five continuations are too few to make up nine tenths; this text tests 76 %."
    )


def test_narrowed_gaussians_are_stated():
    narrowed = said()[2]
    gaps = [number - ENTROPY["null"] for number in (ENTROPY["value"], ENTROPY["low"], ENTROPY["high"])]
    deeper = [number - DEEPER_ENTROPY["null"] for number in (1.2, -0.1, 2.5)]
    assert_states(
        narrowed.full, 13.24, 95, 9.03, 17.45, 25.02, gaps[0], 95, *gaps[1:], 10.03, 95, 7.31, 12.75, 14.93, deeper[0],
        95, *deeper[1:], GAUSSIANS, WINDOWS,
    )  # fmt: skip
    assert narrowed.full.count("conditioning narrows it to fewer directions") == 2
    assert "detected" not in narrowed.full
    assert_states(narrowed.short, 13.24, 25.02)
    assert narrowed.effect == pytest.approx(1 - 13.24 / 25.02)


WIDE = {"value": 13.24, "low": -0.76, "high": 27.24, "null": 25.02}
VAST = {"value": 13.24, "low": -26.76, "high": 53.24, "null": 25.02}
WIDE_ENTROPY = {"value": -4.31, "low": -7.31, "high": -1.31, "null": -2.04}


IN_FOUR = "less would have been in four of five texts"
SMALLER = "conditioning makes it smaller, but a narrowing to fewer directions was not detected"
FEWER = "conditioning narrows it to fewer directions"


@pytest.mark.parametrize(
    ("stream", "verdict"),
    [
        ((WIDE, ENTROPY), f"{SMALLER} ({{dims}} dimensions {IN_FOUR})"),
        ((DIMENSIONS, WIDE_ENTROPY), f"{FEWER}, but a smaller entropy was not detected ({{nats}} nats {IN_FOUR})"),
        ((WIDE, WIDE_ENTROPY), f"a narrowing was not detected ({{dims}} dimensions or {{nats}} nats {IN_FOUR})"),
        (
            (VAST, WIDE_ENTROPY),
            f"a narrowing was not detected ({{nats}} nats {IN_FOUR}; even 24 dimensions less could have been missed)",
        ),
        ((VAST,), "a narrowing was not detected (even 24 dimensions less could have been missed)"),
        ((DIMENSIONS,), FEWER),
    ],
)
def test_verdicts_of_the_gaussians(stream, verdict):
    dims, nats = detected_by_one_test([14.0], GAUSSIANS), detected_by_one_test([3.0], GAUSSIANS)
    expected = verdict.format(dims=f"{dims:.0f}", nats=f"{nats:.1f}")
    full = said(embeddings=stream)[2].full
    assert f": {expected}; after the last layer" in full
    assert f": {expected} (5 previous tokens" in said(last=stream)[2].full


@pytest.mark.parametrize(("size", "short"), [
    (WIDE, "No narrowing of the embeddings that follow the same token was detected; {} dimensions fewer would have "
           "been."),
    (VAST, "No narrowing of the embeddings that follow the same token can be shown; even 24 dimensions fewer could be "
           "missed."),
    (WIDE | {"low": 26.0, "value": 26.0, "high": 26.0}, "No narrowing of the embeddings that follow the same token in "
                                                        "any of 5 previous tokens."),
])  # fmt: skip
def test_a_narrowing_that_was_not_detected(size, short):
    narrowed = said(embeddings=(size, ENTROPY))[2]
    assert narrowed.short == short.format(f"{detected_by_one_test([14.0], GAUSSIANS):.0f}")
    assert narrowed.effect == 0


def test_one_window_and_one_previous_token_give_no_interval():
    none = {"low": None, "high": None}
    told, excluded, narrowed = said(
        half=None, carry=(13.6, None, None, 17.1), windows=1, groups=1, gaussians=1,
        embeddings=(DIMENSIONS | none, ENTROPY | none), last=(DEEPER | none, DEEPER_ENTROPY | none),
    )  # fmt: skip
    assert_states(told.full, 1.769, 1, LEFT["value"], LEFT["null"], 1, 76.4)
    assert "(no interval; 1 window)" in told.full
    assert "about the 1 previous token frequent enough" in told.full
    assert told.short.endswith("about the next (no interval).")
    assert_states(excluded.full, 70, 5, 90, 76, 30, 1, 13.6, 90, 17.1)
    assert_states(narrowed.full, 13.24, 25.02, -2.27, 10.03, 14.93, -2.4, 1, 1)
    assert narrowed.full.count("a narrowing cannot be tested without an interval") == 2
    assert narrowed.full.endswith("(1 previous token, 1 window).")
    assert_states(narrowed.short, 13.24, 25.02)
    assert "(no interval)" in narrowed.short
    assert [headline.effect for headline in (told, excluded, narrowed)] == [None] * 3


def test_a_text_without_vectors_has_two_headlines():
    assert len(said(embeddings=None)) == 2
