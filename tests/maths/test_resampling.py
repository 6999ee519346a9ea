"""Laws of `headscope.maths.resampling`."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from headscope.maths.resampling.jackknife import (
    detectable,
    detectable_among,
    jackknife,
    jackknife_error,
    jackknife_p,
    student_quantile,
)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def left_out_means(values):
    """The mean of all members, then those without each."""
    return torch.cat((values.mean(0)[None], (values.sum(0) - values) / (len(values) - 1)))


def test_student_quantile():
    assert student_quantile(11) == stats.t.ppf(0.975, 10)
    assert math.isnan(student_quantile(1))


def test_jackknife_of_a_mean():
    values = normal(9, 4)
    error = jackknife_error(left_out_means(values))
    torch.testing.assert_close(error, values.std(0) / 3)
    value, half = jackknife(left_out_means(values))
    torch.testing.assert_close(value, values.mean(0))
    torch.testing.assert_close(half, error * stats.t.ppf(0.975, 8))
    assert torch.isnan(jackknife(left_out_means(values[:1]))[1]).all()


def test_jackknife_of_some_units():
    """Half of the units left out in turn tell the error of the mean over all of them, not of their own."""
    values = normal(400, 50, seed=1)
    everything = left_out_means(values)
    half = jackknife_error(everything[:201], population=400)
    ratio = (half.square() / jackknife_error(everything).square()).mean()
    assert abs(float(ratio) - 1) < 4 * (2 / 200 / 50) ** 0.5


def test_p_value_and_interval_agree():
    values = normal(7, 300, seed=2) + 0.5
    estimates = left_out_means(values)
    value, half = jackknife(estimates)
    assert torch.equal(jackknife_p(estimates) < 0.05, value.abs() > half)
    assert 20 < int((value.abs() > half).sum()) < 280


def test_detectable_effect():
    """Found in four of five samples: 400 samples of 12 units, within four binomial errors."""
    values = normal(12, 400, seed=3)
    size = float(detectable(torch.tensor(stats.t.ppf(0.975, 11) / 12**0.5), 12))
    power = float((jackknife_p(left_out_means(values + size)) < 0.05).double().mean())
    # The noncentral t is a little wider than the shifted one: 0.80 to 0.83 for 12 units.
    assert abs(power - 0.81) < 4 * (0.8 * 0.2 / 400) ** 0.5


@pytest.mark.parametrize(("units", "tests", "counted"), [(4, 1, 0), (4, 32, 0), (12, 1, 0), (12, 40, 0), (12, 40, 9)])
def test_detectable_effect_among_tests(units, tests, counted):
    """Counted in four of five samples where all others are noise, or where `counted` others are beyond doubt."""
    samples = 400
    half = torch.tensor(stats.t.ppf(0.975, units - 1) / units**0.5, dtype=torch.float64)
    effects = torch.zeros(tests, samples, dtype=torch.float64)
    effects[0] = detectable_among(half, units, tests, counted)
    effects[1 : 1 + counted] = 1e6
    p = jackknife_p(left_out_means(normal(units, tests, samples, seed=5) + effects)).numpy()
    adjusted = np.stack([stats.false_discovery_control(sample) for sample in p.T], 1)
    power = float((adjusted[0] < 0.05).mean())
    # A false discovery now and then makes room for one more, which lifts the power a little.
    assert abs(power - 0.805) < 4 * (0.8 * 0.2 / samples) ** 0.5


def test_nothing_is_detectable_with_one_unit():
    assert math.isnan(float(detectable_among(torch.tensor(1.0), 1, 3)))
