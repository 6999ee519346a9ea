"""Ways to set a measurement beside a prediction."""

import pytest
import torch

from headscope.theory.checks import exact, less_than, more_than, order_of, rounded, trend_of


@pytest.mark.parametrize(
    ("printed", "full", "agrees"),
    [
        ("1.5", 1.5499, True),
        ("1.5", 1.5576, False),
        ("117", 116.53, True),
        ("340", 335.14, True),  # zeros at the end of a whole number are not significant
        ("340", 334.9, False),
        ("1.50", 1.5049, True),
        ("1.50", 1.506, False),
        ("540", 540.35, True),
    ],
)
def test_a_printed_number_stands_for_what_rounds_to_it(printed: str, full: float, agrees: bool) -> None:
    comparison = rounded("a number", printed, full)
    assert comparison.agrees == agrees
    assert comparison.error == 0


def test_inequalities_use_their_errors() -> None:
    assert more_than("", 1.0, 1.6, 0.1).agrees
    assert not more_than("", 1.0, 1.4, 0.1).agrees
    assert not more_than("", 1.0, 1.4, 0.1).contradicts
    assert less_than("", 1.0, 0.4, 0.1).agrees
    assert less_than("", 1.0, 1.6, 0.1).contradicts


def test_an_order_carries_a_measured_error() -> None:
    sizes = (8.0, 16.0, 32.0, 64.0)
    left = [n**-3 + n**-4 for n in sizes]
    comparison = order_of("power", "n", -3.0, sizes, left)
    assert comparison.agrees
    assert 0 < comparison.error < 0.1
    assert not order_of("power", "n", -2.0, sizes, left).agrees
    assert not order_of("power", "n", -4.0, sizes, left).agrees


def test_a_trend_without_spreads_is_computed() -> None:
    trend = trend_of("error", "n", (1, 2, 4), (1.0, 0.5, 0.25), -1.0)
    assert trend.spreads == (0.0, 0.0, 0.0)
    assert trend.agrees


def test_the_worst_pair_is_far_apart_in_its_own_size() -> None:
    comparison = exact("", torch.tensor([100.0, 1.0, 5.0]).double(), torch.tensor([101.0, 2.0, 5.0]).double())
    assert (comparison.predicted, comparison.measured) == (1.0, 2.0)
