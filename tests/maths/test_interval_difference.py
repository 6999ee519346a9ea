"""Laws of `headscope.maths.resampling.interval_difference`."""

import pytest
import torch
from scipy import stats

from headscope.maths.resampling.interval_difference import adjusted_p, difference_interval, difference_p


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_half_widths_add_in_squares():
    low, high = difference_interval(
        doubles(1.0), (doubles(0.7), doubles(1.3)), doubles(3.0), (doubles(2.6), doubles(3.4))
    )
    torch.testing.assert_close(low, doubles(1.5))
    torch.testing.assert_close(high, doubles(2.5))


def test_lopsided_ends_come_from_the_sides_that_face_each_other():
    low, high = difference_interval(
        doubles(0.0), (doubles(-3.0), doubles(4.0)), doubles(10.0), (doubles(7.0), doubles(14.0))
    )
    torch.testing.assert_close(low, doubles(10.0 - 5.0))
    torch.testing.assert_close(high, doubles(10.0 + 5.0))


def test_exchange_changes_signs():
    first, second = (doubles(1.0), (doubles(0.5), doubles(2.0))), (doubles(3.0), (doubles(2.9), doubles(5.0)))
    low, high = difference_interval(*first, *second)
    other_low, other_high = difference_interval(*second, *first)
    torch.testing.assert_close((other_low, other_high), (-high, -low))


@pytest.mark.parametrize("shared", [0.0, 2.0])
def test_intervals_of_differences_cover(shared):
    """Means over 30 windows, 2000 times: on windows of their own 95 of 100, on common windows more."""
    common = shared * normal(30, 2000, seed=1)
    estimates = []
    for seed, truth in ((2, 0.0), (3, 0.4)):
        values = truth + common + normal(30, 2000, seed=seed)
        half = stats.t.ppf(0.975, 29) * values.std(0) / 30**0.5
        estimates.append((values.mean(0), (values.mean(0) - half, values.mean(0) + half)))
    low, high = difference_interval(*estimates[0], *estimates[1])
    n_covered = int(((low <= 0.4) & (high >= 0.4)).sum())
    least, most = (int(stats.binom.ppf(tail, 2000, 0.95)) for tail in (0.0005, 0.9995))
    assert least <= n_covered <= (2000 if shared else most)
    assert n_covered > most or not shared


def test_p_value_and_difference_interval_agree():
    units = torch.tensor([8, 8, 8, 8, 1])
    difference = doubles(1.0, 1.0, -1.0, 0.0, 1.0)
    ends = (doubles(0.0, 0.01, -1.9, -1.0, 0.5), doubles(2.0, 1.99, -0.1, 1.0, 1.5))
    p = difference_p(difference, ends, units)
    torch.testing.assert_close(p[:1], doubles(0.05))
    assert 0.04 < p[1] < 0.05
    # The end towards 0 of a negative difference is the upper one, 0.9 away.
    torch.testing.assert_close(p[2:3], doubles(2 * stats.t.sf(stats.t.ppf(0.975, 7) / 0.9, 7)))
    assert p[3] == 1.0
    assert p[4].isnan()


def test_a_difference_without_an_interval_has_no_p_value():
    nan = doubles(torch.nan)
    assert difference_p(doubles(1.0), (nan, nan), torch.tensor([8])).isnan()
    assert difference_p(doubles(0.0), (nan, nan), torch.tensor([8])).isnan()


def test_adjusted_p():
    torch.testing.assert_close(adjusted_p(doubles(0.03)), doubles(0.03))
    p = doubles(0.01, torch.nan, 0.02, 0.5, 0.021)
    # Four tests: 4 · 0.01, then the least of 4 · 0.02 / 2 and 4 · 0.021 / 3, …
    torch.testing.assert_close(adjusted_p(p), doubles(0.028, torch.nan, 0.028, 0.5, 0.028), equal_nan=True)
    assert adjusted_p(doubles(torch.nan)).isnan()
