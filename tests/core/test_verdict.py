"""A verdict is what the numbers say."""

import math

import pytest

from headscope.core.verdict import (
    STANDARD_ERRORS,
    Comparison,
    Entry,
    Evidence,
    Ledger,
    Source,
    Trend,
    settled,
    verdict_of,
)
from headscope.errors import NumericsError

RIGHT = Comparison("right", 1.0, 1.01, 0.01)
WRONG = Comparison("wrong", 1.0, 2.0, 0.01)
FALLING = Trend("error", "n", (10.0, 100.0, 1000.0), (0.1, 0.01, 0.001))
STAYING = Trend("error", "n", (10.0, 100.0, 1000.0), (0.1, 0.1, 0.1))


@pytest.mark.parametrize(
    ("evidence", "verdict"),
    [
        (Evidence((RIGHT,)), "holds"),
        (Evidence((RIGHT, RIGHT), (WRONG,)), "holds"),
        (Evidence((RIGHT, WRONG), (RIGHT,)), "refuted"),
        (Evidence((WRONG,), trend=FALLING), "approximate"),
        (Evidence((WRONG,), (RIGHT,), trend=STAYING), "refuted"),
    ],
)
def test_the_numbers_decide(evidence: Evidence, verdict: str) -> None:
    assert verdict_of(evidence) == verdict


@pytest.mark.parametrize(
    "evidence", [Evidence((WRONG,)), Evidence((WRONG,), (WRONG,)), Evidence((WRONG,), trend=STAYING)]
)
def test_a_refutation_without_a_correction_is_an_error(evidence: Evidence) -> None:
    with pytest.raises(NumericsError, match="undecided"):
        verdict_of(evidence)


def test_a_check_must_compare_something() -> None:
    with pytest.raises(NumericsError, match="compare"):
        Evidence(())


def test_agreement_is_counted_in_errors() -> None:
    assert Comparison("", 1.0, 1.0 + 0.99 * STANDARD_ERRORS, 1.0).agrees
    assert not Comparison("", 1.0, 1.0 + 1.01 * STANDARD_ERRORS, 1.0).agrees
    assert Comparison("counted", 3.0, 3.0, 0.0).agrees
    assert not Comparison("counted", 3.0, 4.0, 0.0).agrees
    assert not Comparison("", 1.0, math.nan, 1.0).agrees


@pytest.mark.parametrize("power", [-2.0, -0.5, 1.0])
def test_the_order_of_a_trend_is_its_power(power: float) -> None:
    values = (2.0, 5.0, 11.0, 30.0)
    assert Trend("", "n", values, tuple(3 * value**power for value in values)).order == pytest.approx(power)


def test_a_ledger_counts_statements() -> None:
    entry = Entry(("A", "B"), Source("x", "y", "1"), "s", "", "holds", "l")
    assert Ledger((entry, entry), seed=0).counts() == {"holds": 4}


def test_settled_numbers() -> None:
    noisy = Comparison("zero", 0.0, 3.1e-17, 1e-9), Comparison("sampled", 1.25, 1.2534567891, 0.00123456)
    zero, sampled = settled(Evidence(noisy)).stated
    assert zero.measured == 0.0
    assert (sampled.measured, sampled.error) == (1.25346, 0.00123)
    counted = Comparison("counted", 3.0, 4.0, 0.0)
    assert settled(Evidence((counted,))).stated == (counted,)
    for comparison in noisy:
        assert settled(Evidence((comparison,))).stated[0].agrees == comparison.agrees
