"""Every number of the sentences of `scores`, from planted tables, and the branch of each verdict."""

from statistics import median

import polars as pl
import pytest

from headscope.lenses.scores.sentences import method, sentences
from headscope.lenses.scores.tables import BOUNDS, HEADS, TERMS
from tests.lenses.stated_numbers import assert_sound, assert_states, detected_by_one_test

WINDOWS = 9
PLACE = {"stack": "only", "kind": "self", "layer": 0}
VARIANCE = {"value": [1.12, 0.62, 3.41], "half": [0.1, 0.05, 0.02], "predicted": [1.0, 1.03, 3.2]}
ENTROPY = {"value": [0.724, 0.61, 0.905], "half": [0.004, 0.1, 0.02], "predicted": [0.735, 0.66, 0.86]}
FREEZING = {"value": [0.4, 1.3, 1.05], "half": [0.1, 0.05, 0.2], "predicted": [0.5, 1.2, 1.1]}
JACOBIAN = {"value": [0.121, 0.2, 0.04], "half": [0.01, 0.02, 0.05], "null": [0.0056, 0.0056, 0.0056]}
UNSCALED = {"value": [0.19, 0.22, 0.07], "half": [0.01] * 3}
REJECTED = {"value": [0.231, 0.31, 0.06], "half": [0.02] * 3, "null": [0.05] * 3}
QUANTITIES = {
    "mean": UNSCALED, "row_variance": VARIANCE, "entropy_share": ENTROPY, "freezing": FREEZING,
    "jacobian_trained": JACOBIAN, "jacobian_unscaled": UNSCALED, "rejected_share": REJECTED,
}  # fmt: skip
LIMITS = {"value": [8.2, 5.0, 9.0], "bound": [10.0, 10.0, 10.0], "beyond": [0.0, 0.2, None]}
# Shares of both mixed terms of two heads, half intervals and nulls.
MIXED = {
    "share": [(0.02, 0.014), (0.05, 0.03)],
    "half": [(0.004, 0.1), (0.01, 0.02)],
    "null": [(0.09, 0.1), (0.08, 0.07)],
}
RANGE = {"row_variance": (0.0, 1e9), "entropy_share": (0.0, 1.0), "jacobian_trained": (0.0, 0.5)}


def head_rows(quantity, cells, windows):
    least, most = RANGE.get(quantity, (-1e9, 1e9))
    for head, (value, half) in enumerate(zip(cells["value"], cells["half"], strict=True)):
        low, high = (max(value - half, least), min(value + half, most)) if windows > 1 else (None, None)
        references = {name: cells[name][head] for name in ("predicted", "null") if name in cells}
        yield PLACE | {
            "head": head, "quantity": quantity, "value": value, "low": low, "high": high, "windows": windows,
            **references,
        }  # fmt: skip


def term_rows(terms, windows):
    for head, shares in enumerate(terms["share"]):
        for index, quantity in enumerate(("position_content", "content_position", "content_content")):
            share, half, null = (
                (cells[index] for cells in (shares, terms["half"][head], terms["null"][head]))
                if index < 2
                else (0.5, 0.1, 0.4)
            )
            ends = {"share_low": share - half, "share_high": share + half} if windows > 1 else {}
            yield PLACE | {"head": head, "quantity": quantity, "share": share, "null": null, "windows": windows, **ends}


def said(windows=WINDOWS, limits=LIMITS, terms=MIXED, **changes):
    quantities = QUANTITIES | changes
    rows = [row for name, cells in quantities.items() if cells is not None for row in head_rows(name, cells, windows)]
    bounds = [] if limits is None else [
        PLACE | {"head": head, "value": value, "bound": limits["bound"][head], "beyond": limits["beyond"][head],
                 "windows": windows}
        for head, value in enumerate(limits["value"])
    ]  # fmt: skip
    tables = {
        "heads": pl.DataFrame(rows, schema=HEADS), "bounds": pl.DataFrame(bounds, schema=BOUNDS),
        "terms": pl.DataFrame([] if terms is None else [*term_rows(terms, windows)], schema=TERMS),
    }  # fmt: skip
    headlines = sentences(tables)
    for headline in headlines:
        assert_sound(headline)
    return headlines


RATIOS = [value / predicted for value, predicted in zip(VARIANCE["value"], VARIANCE["predicted"], strict=True)]
RELATIVE = [half / predicted for half, predicted in zip(VARIANCE["half"], VARIANCE["predicted"], strict=True)]


def test_variances_are_compared_with_independent_tokens():
    variance = said()[0]
    limit = 100 * detected_by_one_test(RELATIVE, WINDOWS)
    assert_states(
        variance.full, WINDOWS, median(RATIOS), 3, 1.12, 95, 1.02, 1.22, 95, 2, 3, 1, 0, limit
    )  # fmt: skip
    assert "most in L0.H0: 1.12 times (95 % interval 1.02 to 1.22)" in variance.full
    assert "larger in 2 of 3 heads and smaller in 1 (by chance: one in forty each), and 0 cannot" in variance.full
    assert_states(variance.short, median(RATIOS))
    assert variance.effect == pytest.approx(1 - 1 / median(RATIOS))


def test_an_end_next_to_one_is_written_on_its_side():
    variance = said(row_variance=VARIANCE | {"half": [0.1196, 0.05, 0.02]})[0]
    assert "1.1200 times (95 % interval 1.0004 to 1.2396)" in variance.full


def test_variances_like_those_of_independent_tokens():
    halves = [0.3, 0.05, 0.4]
    variance = said(row_variance=VARIANCE | {"half": halves})[0]
    limit = 100 * detected_by_one_test([0.3, 0.05 / 1.03, 0.4 / 3.2], WINDOWS)
    assert variance.short == (
        f"In 2 of 3 heads no difference of score variance from independent tokens was detected; {limit:.0f} % would "
        "have been."
    )
    assert variance.effect == 0
    assert (
        "larger in 0 of 3 heads and smaller in 1 (by chance: one in forty each), and 2 cannot be told" in variance.full
    )
    same = said(row_variance=VARIANCE | {"value": VARIANCE["predicted"], "half": [0.0] * 3})[0]
    assert same.short == "In 3 of 3 heads no difference of score variance from independent tokens in any of 9 windows."


def test_tokens_may_be_too_few_to_predict():
    nothing = said(row_variance=VARIANCE | {"predicted": [None, 0.0, None]})[0]
    assert nothing.full == nothing.short == "Scores of 3 heads were seen, too few tokens to predict them."
    assert nothing.effect is None


def test_entropies_are_compared_with_gaussian_scores():
    entropy = said()[1]
    gap = median(100 * (a - b) for a, b in zip(ENTROPY["value"], ENTROPY["predicted"], strict=True))
    limit = 100 * detected_by_one_test(ENTROPY["half"], WINDOWS)
    assert_states(
        entropy.full, WINDOWS, 3, 72.4, 73.5, gap, 95, 1, 3, 1, limit, 95, 1, 1, 3, 2, 1, 23.1, 5
    )  # fmt: skip
    assert "above the prediction in 1 of 3 heads, below it in 1 (" in entropy.full
    assert "freezing number is above 1 in 1 of 3 heads (independent tokens: 2), and 1 cannot be told." in entropy.full
    assert_states(entropy.short, 72.4, 73.5)
    assert entropy.effect == pytest.approx(0.011 / 0.735)


@pytest.mark.parametrize(("half", "short"), [
    (0.2, "In 3 of 3 heads no entropy unlike Gaussian scores' was detected; {:.0f} points would have been."),
    (0.7, "In 3 of 3 heads no entropy unlike Gaussian scores' can be shown; even {:.0f} points could be missed."),
])  # fmt: skip
def test_entropies_like_those_of_gaussian_scores(half, short):
    """Intervals end at 0 and 1: what would have been detected follows from their longer halves."""
    entropy = said(entropy_share=ENTROPY | {"half": [half] * 3})[1]
    limit, reach = detected_by_one_test([half] * 3, WINDOWS), 0.735
    assert entropy.short == short.format(100 * min(limit, reach))
    assert (limit > reach) == ("can be shown" in entropy.short)
    assert entropy.effect == 0


def test_what_was_not_measured_is_left_out():
    entropy = said(rejected_share=None, freezing=FREEZING | {"predicted": [None] * 3})[1]
    assert "Normality" not in entropy.full
    assert "above 1 in 1 of 3 heads, and 1 cannot be told." in entropy.full
    assert len(said(entropy_share=ENTROPY | {"predicted": [None] * 3})) == 2
    assert len(said(jacobian_trained=None, limits=None, terms=None)) == 2


def test_jacobians_bounds_and_terms_are_stated():
    last = said()[2]
    norm, uniform, unscaled = 0.121, 0.0056, median(UNSCALED["value"])
    share, null = 100 * (0.034 + 0.08) / 2, 100 * (0.19 + 0.15) / 2
    assert_states(
        last.full, WINDOWS, norm, 3, uniform, 95, 2, 3, unscaled, 82, 3, 1, 2, share, 2, null, 95, 3, 4
    )  # fmt: skip
    assert "outside the 95 % interval in 2 of 3 heads; without the scale: 0.19)" in last.full
    assert "the bound fails in 1 of 2 heads)" in last.full
    assert "outside the 95 % interval of 3 of 4 terms)" in last.full
    assert_states(last.short, norm, uniform)
    assert last.effect == pytest.approx((norm - uniform) / (0.5 - uniform))


@pytest.mark.parametrize(("half", "short"), [
    (0.2, "No response of weights to scores unlike that of uniform attention was detected; {:.2f} would have been."),
    (0.45, "No response of weights to scores unlike that of uniform attention can be shown; even {:.2f} could be "
           "missed."),
])  # fmt: skip
def test_a_response_like_that_of_uniform_attention(half, short):
    last = said(jacobian_trained=JACOBIAN | {"half": [half] * 3})[2]
    limit, reach = detected_by_one_test([half] * 3, WINDOWS), 0.5 - 0.0056
    assert last.short == short.format(min(limit, reach))
    assert last.effect == 0


def test_other_parts_speak_where_there_is_no_jacobian():
    bounds = said(jacobian_trained=None)[2]
    assert bounds.full.startswith("Over 9 windows, the largest score reaches 82 %")
    assert bounds.short == "The median head's largest score is 82 % of what the lengths of its query and key allow."
    terms = said(jacobian_trained=None, limits=None)[2]
    assert_states(terms.full, WINDOWS, 5.7, 2, 17, 95, 3, 4)
    assert_states(terms.short, 5.7, 17)
    assert (bounds.effect, terms.effect) == (None, None)
    unbounded = said(limits=LIMITS | {"bound": [0.0] * 3})[2]
    assert "Cauchy" not in unbounded.full
    unstated = said(limits=LIMITS | {"beyond": [None] * 3})[2]
    assert "cosine" not in unstated.full


def test_one_window_gives_no_interval():
    variance, entropy, last = said(windows=1)
    assert_states(variance.full, 1, median(RATIOS), 3, 1.12)
    assert_states(entropy.full, 1, 3, 72.4, 73.5, -1.1, 1, 2, 3, 2, 23.1, 5)
    assert "points (no interval)" in entropy.full
    assert "without an interval" in entropy.full
    assert_states(last.full, 1, 0.121, 3, 0.0056, 0.19, 82, 3, 1, 2, 5.7, 2, 17)
    for headline in (variance, entropy, last):
        assert headline.short.endswith("(no interval).")
        assert headline.effect is None


def test_one_head():
    alone = {name: {column: numbers[:1] for column, numbers in cells.items()} for name, cells in QUANTITIES.items()}
    headlines = said(limits={name: cells[:1] for name, cells in LIMITS.items()}, terms=None, **alone)
    assert "in the median of 1 head, and most in L0.H0" in headlines[0].full
    assert "larger in 1 of 1 head and smaller in 0" in headlines[0].full
    assert "the bound fails in 0 of 1 head)" in headlines[2].full
    few = said(**alone | {"row_variance": None})
    assert few[0].full == "Scores of 1 head were seen, too few tokens to predict them."


def test_the_method_names_rotary_positions():
    assert "Positions are rotary" in method("rotary")
    assert "rotary" not in method("learned")
