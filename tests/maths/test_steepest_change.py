"""Laws of `headscope.maths.resampling.steepest_change`: curves whose steepest change is known."""

import pytest
import torch
from scipy import stats

from headscope.maths.resampling.steepest_change import steepest_change

WINDOWS, SAMPLES, POINTS = 24, 1000, 9
X = torch.arange(POINTS, dtype=torch.float64)
# One rise, from 0.1 to 0.9, mostly between the points 4 and 5.
RISE = torch.tensor([0.1, 0.1, 0.1, 0.12, 0.3, 0.7, 0.88, 0.9, 0.9], dtype=torch.float64)
# A straight line but for a slightly steeper piece between the points 4 and 5.
LINE = 0.1 * X + torch.where(X > 4, 0.001, 0.0)


def sampled(curve, error, *, shared=0.0, seed=0):
    """Means over windows of a curve with noise, and their Student intervals; `shared` is noise common to all points."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(WINDOWS, SAMPLES, POINTS, generator=generator, dtype=torch.float64)
    common = torch.randn(WINDOWS, SAMPLES, 1, generator=generator, dtype=torch.float64)
    windows = curve + error * WINDOWS**0.5 * (noise + shared * common)
    half = stats.t.ppf(0.975, WINDOWS - 1) * windows.std(0) / WINDOWS**0.5
    return windows.mean(0), (windows.mean(0) - half, windows.mean(0) + half)


def asked(curve, error, **options):
    values, ends = sampled(curve, error, **options)
    return steepest_change(X, values, ends, torch.full((SAMPLES,), WINDOWS))


def exact(*curves):
    values = torch.tensor(curves, dtype=torch.float64)
    return steepest_change(X[: values.shape[1]], values, (values, values), torch.full((len(values),), 2))


def test_exact_curves_have_one_steepest_pair():
    change = exact([0.0, 0.1, 0.5, 0.6], [0.0, -1.0, -1.1, -1.0], [2.0, 2.0, 2.0, 2.0])
    assert change.pair.tolist()[:2] == [1, 0]
    assert change.first.tolist() == [1, 0, 0]
    assert change.last.tolist() == [1, 0, 2]  # in a flat curve every pair may be
    torch.testing.assert_close(change.rate, torch.tensor([0.4, -1.0, 0.0], dtype=torch.float64))
    assert change.p.tolist() == [0.0, 0.0, 1.0]


def test_rates_count_per_unit_of_x():
    """The larger change takes the longer way, so that it is not the steeper one."""
    values = torch.tensor([[0.0, 1.0, 2.5]], dtype=torch.float64)
    x = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    change = steepest_change(x, values, (values, values), torch.tensor([2]))
    assert (change.pair.item(), change.rate.item()) == (0, 1.0)


@pytest.mark.parametrize("shared", [0.0, 2.0])
@pytest.mark.parametrize(("curve", "error"), [(RISE, 0.02), (RISE, 0.1), (LINE, 0.03)], ids=["sure", "unsure", "line"])
def test_the_steepest_pair_is_covered(curve, error, shared):
    change = asked(curve, error, shared=shared)
    n_covered = int(((change.first <= 4) & (change.last >= 4)).sum())
    assert n_covered >= stats.binom.ppf(0.0005, SAMPLES, 0.95)
    assert int((change.last - change.first).max()) > 0  # errors of this size leave a choice


def test_small_errors_leave_one_pair():
    change = asked(RISE, 0.003)
    assert change.pair.eq(4).all()
    assert change.first.eq(4).all()
    assert change.last.eq(4).all()


@pytest.mark.parametrize("shared", [0.0, 2.0])
def test_flat_curves_are_seldom_changes(shared):
    change = asked(torch.full((POINTS,), 0.3, dtype=torch.float64), 0.05, shared=shared)
    assert int((change.p <= 0.05).sum()) <= stats.binom.ppf(0.9995, SAMPLES, 0.05)


def test_a_detectable_change_is_detected():
    error = 0.01
    flat = torch.full((POINTS,), 0.3, dtype=torch.float64)
    size = float(asked(flat, error).detectable.median())
    step = torch.where(X >= 4, size, 0.0)
    n_detected = int((asked(flat + step, error, seed=1).p <= 0.05).sum())
    assert n_detected >= stats.binom.ppf(0.0005, SAMPLES, 0.8)
    # Half of that size is found more seldom than not.
    assert int((asked(flat + step / 2, error, seed=2).p <= 0.05).sum()) < SAMPLES / 2


def test_a_curve_upside_down():
    values, (low, high) = sampled(RISE, 0.02)
    units = torch.full((SAMPLES,), WINDOWS)
    change = steepest_change(X, values, (low, high), units)
    turned = steepest_change(X, -values, (-high, -low), units)
    torch.testing.assert_close(turned.rate, -change.rate)
    for name in ("pair", "first", "last", "p", "detectable"):
        torch.testing.assert_close(getattr(turned, name), getattr(change, name))


def test_missing_values_are_no_pair():
    nan = float("nan")
    change = exact([0.0, 0.1, nan, 5.0, 5.2], [nan, nan, nan, nan, nan])
    assert change.pair.tolist() == [3, -1]
    assert (change.first[0].item(), change.last[0].item()) == (3, 3)
    assert change.rate[1].isnan()


def test_without_intervals_every_pair_may_be_the_steepest():
    values = RISE[None]
    missing = torch.full_like(values, torch.nan)
    change = steepest_change(X, values, (missing, missing), torch.tensor([WINDOWS]))
    assert change.pair.item() == 4
    assert (change.first.item(), change.last.item()) == (0, POINTS - 2)
    assert change.p.isnan().all()
    assert change.detectable.isnan().all()
