"""A verdict is what the numbers and the words of a statement say."""

import math
from dataclasses import replace

import pytest

from headscope.core.verdict import (
    STANDARD_ERRORS,
    Comparison,
    Entry,
    Evidence,
    Ledger,
    Source,
    Trend,
    correction_passes,
    rounded_evidence,
    verdict_of,
)
from headscope.errors import NumericsError

RIGHT = Comparison("right", 1.0, 1.01, 0.01)
WRONG = Comparison("wrong", 1.0, 2.0, 0.01)
CLOSE = Comparison("close", 1.0, 1.06, 0.001)
ABOVE, BELOW = Comparison("a mean", 0.5, 0.9, 0.01, ">"), Comparison("a mean", 0.5, 0.9, 0.01, "<")
OPEN = Comparison("a mean", 0.5, 0.52, 0.01, ">")
YES, NO = Comparison("so", 1.0, 1.0, 0.0, "is"), Comparison("so", 1.0, 0.0, 0.0, "is")
PRINTED = Comparison("printed 1.5", 1.5, 1.5576, 0.0, tolerance=0.05)
SIZES = (10.0, 100.0, 1000.0)
FALLING = Trend("error", "n", SIZES, (0.1, 0.01, 0.001), (0.0,) * 3, -1.0)
STAYING = Trend("error", "n", SIZES, (0.1, 0.1, 0.1), (0.0,) * 3, 0.0)


@pytest.mark.parametrize(
    ("evidence", "wording", "verdict"),
    [
        (Evidence((RIGHT,)), "plain", "holds"),
        (Evidence((RIGHT, RIGHT), (WRONG,)), "plain", "holds"),
        (Evidence((RIGHT,), null=(RIGHT,)), "plain", "true but empty"),
        (Evidence((RIGHT,), null=(RIGHT, WRONG)), "plain", "holds"),
        (Evidence(answer=(RIGHT,)), "plain", "open question"),
        (Evidence((RIGHT, WRONG), (RIGHT,)), "plain", "refuted"),
        (Evidence((WRONG,), (RIGHT,), FALLING), "plain", "approximate"),
        (Evidence((WRONG,), (RIGHT,), FALLING), "approximate", "approximate"),
        (Evidence((WRONG,), (RIGHT,), STAYING), "approximate", "refuted"),
        (Evidence((WRONG,), (RIGHT,), FALLING), "exact", "refuted"),
        (Evidence((CLOSE,), (RIGHT,), FALLING), "plain", "approximate"),
        (Evidence((NO,), (RIGHT,), FALLING), "approximate", "refuted"),  # a yes or no has no regime
        (Evidence((PRINTED,), (RIGHT,)), "plain", "refuted"),
        (Evidence((BELOW,), (RIGHT,)), "plain", "refuted"),
    ],
)
def test_the_numbers_decide(evidence: Evidence, wording: str, verdict: str) -> None:
    assert verdict_of(evidence, wording) == verdict


@pytest.mark.parametrize(
    ("evidence", "wording", "reason"),
    [
        (Evidence((WRONG,)), "plain", "no correction"),
        (Evidence((WRONG,), (WRONG,)), "plain", "no correction passes"),
        (Evidence((WRONG,), trend=FALLING), "plain", "no correction"),  # also with a trend
        (Evidence((WRONG,), (RIGHT, WRONG), FALLING), "plain", "no correction passes"),
        (Evidence((WRONG,), (RIGHT,), replace(FALLING, order=-2.0)), "plain", "to the power"),
        (Evidence((WRONG,), (RIGHT,)), "approximate", "no trend"),
        (Evidence((CLOSE,), (RIGHT,)), "plain", "no trend"),
        (Evidence((BELOW,), (ABOVE,)), "plain", "cannot fail"),
        (Evidence((NO,), (replace(YES, what="not so"),)), "plain", "cannot fail"),
        (Evidence((OPEN,), (RIGHT,)), "plain", "left open"),
        (Evidence(answer=(WRONG,)), "plain", "answer"),
    ],
)
def test_what_decides_nothing_is_an_error(evidence: Evidence, wording: str, reason: str) -> None:
    with pytest.raises(NumericsError, match=f"undecided.*{reason}"):
        verdict_of(evidence, wording)


@pytest.mark.parametrize(
    ("evidence", "verdict", "printed"),
    [
        (Evidence((ABOVE,)), "holds", False),
        (Evidence((BELOW,)), "refuted", False),
        (Evidence((BELOW,), (RIGHT,)), "refuted", True),
        (Evidence((BELOW,), (WRONG,)), "refuted", False),
        (Evidence((BELOW,), (ABOVE,)), "refuted", False),
        (Evidence((OPEN, ABOVE)), "needs a model", False),
        (Evidence((OPEN, BELOW)), "refuted", False),
    ],
)
def test_one_model_needs_no_correction(evidence: Evidence, verdict: str, printed: bool) -> None:
    assert verdict_of(evidence, "approximate", on_model=True) == verdict
    assert (verdict == "refuted" and correction_passes(evidence)) == printed


def test_a_check_must_compare_something() -> None:
    for empty in ({}, {"stated": (RIGHT,), "answer": (RIGHT,)}):
        with pytest.raises(NumericsError, match="compare"):
            Evidence(**empty)


def test_agreement_is_counted_in_errors() -> None:
    assert Comparison("", 1.0, 1.0 + 0.99 * STANDARD_ERRORS, 1.0).agrees
    assert not Comparison("", 1.0, 1.0 + 1.01 * STANDARD_ERRORS, 1.0).agrees
    assert Comparison("counted", 3.0, 3.0, 0.0).agrees
    assert not Comparison("counted", 3.0, 4.0, 0.0).agrees
    for relation in ("=", "<", ">"):
        nothing = Comparison("", 1.0, math.nan, 1.0, relation)
        assert not nothing.agrees
        assert nothing.contradicts


def test_an_inequality_is_left_open_by_its_interval() -> None:
    assert (OPEN.agrees, OPEN.contradicts) == (False, False)
    assert (ABOVE.agrees, ABOVE.contradicts, BELOW.agrees, BELOW.contradicts) == (True, False, False, True)
    exact = Comparison("", 2.0, 2.0, 0.0, ">")
    assert (exact.agrees, exact.contradicts) == (False, True)


def test_a_printed_number_may_be_rounded() -> None:
    assert Comparison("1.5", 1.5, 1.549, 0.0, tolerance=0.05).agrees
    assert not PRINTED.agrees


@pytest.mark.parametrize("power", [-2.0, -0.5, 1.0])
def test_the_order_of_a_trend_is_its_power(power: float) -> None:
    values = (2.0, 5.0, 11.0, 30.0)
    trend = Trend("", "n", values, tuple(3 * value**power for value in values), (0.0,) * 4, power)
    assert trend.fitted == pytest.approx(power)
    assert trend.agrees


@pytest.mark.parametrize("off", [-0.5, 0.3, 1.0])
def test_a_trend_must_have_the_stated_order(off: float) -> None:
    # An error with a next term: 1/n + 1/n².
    errors = tuple(1 / n + 1 / n**2 for n in (8.0, 32.0, 128.0))
    trend = Trend("", "n", (8.0, 32.0, 128.0), errors, (0.0,) * 3, -1.0)
    assert trend.agrees
    assert not replace(trend, order=-1.0 + off).agrees


def test_a_noisy_trend_tells_no_order() -> None:
    noisy = replace(FALLING, spreads=(0.02, 0.002, 0.0002))
    assert noisy.uncertainty > FALLING.uncertainty
    assert not noisy.agrees
    with pytest.raises(NumericsError, match="three values"):
        Trend("", "n", (1.0, 2.0), (0.1, 0.05), (0.0, 0.0), -1.0)


def test_an_error_vanishes_towards_its_regime() -> None:
    assert FALLING.vanishes
    assert not STAYING.vanishes
    small = Trend("error", "size", (0.4, 0.2, 0.1), (0.2, 0.1, 0.05), (0.0,) * 3, 1.0)
    assert small.vanishes
    assert not replace(small, errors=(0.8, 0.4, 0.2)).vanishes  # a fifth is too much


def test_a_ledger_counts_statements() -> None:
    entry = Entry(("A", "B"), Source("x", "y", "1"), "s", "", "holds", "l")
    one = replace(entry, model="tiny")
    bound = replace(one, checkpoint="tiny", verdict="refuted")
    assert (one.reading, bound.reading) == ("holds on tiny", "refuted")
    assert replace(one, verdict="needs a model").reading == "needs a model"
    counts = Ledger((entry, one, entry, bound), seed=0).counts()
    assert list(counts.items()) == [("refuted", 2), ("holds", 4), ("holds on tiny", 2)]


def test_settled_numbers() -> None:
    noisy = Comparison("zero", 0.0, 3.1e-17, 1e-9), Comparison("sampled", 1.25, 1.2534567891, 0.00123456)
    zero, sampled = rounded_evidence(Evidence(noisy)).stated
    assert zero.measured == 0.0
    assert (sampled.measured, sampled.error) == (1.25346, 0.00123)
    counted = Comparison("counted", 3.0, 4.0, 0.0)
    assert rounded_evidence(Evidence((counted,))).stated == (counted,)
    for comparison in noisy:
        assert rounded_evidence(Evidence((comparison,))).stated[0].agrees == comparison.agrees
    assert rounded_evidence(Evidence(answer=noisy)).answer == (zero, sampled)
