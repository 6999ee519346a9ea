"""Tests of normality: level, power, known values."""

import pytest
import torch
from scipy import stats

from headscope.errors import UsageError
from headscope.maths.gaussians.normality import (
    excess_kurtosis,
    mardia_kurtosis,
    mardia_skewness,
    omnibus_p,
    relative_kurtosis,
    skewness,
)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_marginal_tests_of_gaussians():
    """scipy's numbers; z of Gaussian samples is a standard normal."""
    x = normal(100, 400)
    for ours, theirs in ((skewness, stats.skewtest), (excess_kurtosis, stats.kurtosistest)):
        found = ours(x)
        assert found[3].z == pytest.approx(theirs(x[:, 3].numpy()).statistic)
        assert stats.kstest([one.z for one in found], "norm").pvalue > 0.01
    assert skewness(x)[0].value == pytest.approx(stats.skew(x[:, 0].numpy()))
    assert sum(one.value for one in excess_kurtosis(x)) / 400 == pytest.approx(excess_kurtosis(x)[0].expected, abs=0.05)


@pytest.mark.parametrize("n", [40, 300])
def test_mardia_of_gaussians(n):
    """Expected values and level on Gaussian samples, whatever the basis."""
    mix = normal(3, 3, seed=1)
    for test in (mardia_skewness, mardia_kurtosis):
        found = [test(normal(n, 3, seed=seed)) for seed in range(200)]
        mean = sum(one.value for one in found) / len(found)
        assert mean == pytest.approx(found[0].expected, rel=0.08)
        assert sum(one.p < 0.05 for one in found) / len(found) == pytest.approx(0.05, abs=0.045)
        assert sum(one.z for one in found) / len(found) == pytest.approx(0, abs=0.3)
        moved = test(normal(n, 3) @ mix + 7)
        assert moved.value == pytest.approx(found[0].value)


@pytest.mark.parametrize(("n", "d"), [(20, 3), (24, 12)])
def test_the_variance_of_mardia_kurtosis_is_exact(n, d):
    """Few samples, so that every factor of the variance counts: z of Gaussian samples has variance 1."""
    z = torch.tensor([mardia_kurtosis(normal(n, d, seed=seed)).z for seed in range(3000)], dtype=torch.float64)
    spread = float(z.var())
    standard_error = float((z - z.mean()).square().std()) / len(z) ** 0.5
    assert abs(spread - 1) < 4 * standard_error < 0.3
    assert abs(float(z.mean())) < 4 / len(z) ** 0.5


def test_mardia_known_values():
    """±e_i: every sample at the same Mahalanobis distance d, and symmetric."""
    x = torch.cat((torch.eye(4), -torch.eye(4))).repeat(5, 1).double()
    assert mardia_kurtosis(x).value == pytest.approx(16)
    assert mardia_skewness(x).value == pytest.approx(0, abs=1e-12)


def test_mardia_skewness_is_the_double_sum():
    x = normal(30, 3).exp()
    c = x - x.mean(0)
    g = c @ torch.linalg.inv(c.mT @ c / 30) @ c.mT
    assert mardia_skewness(x).value == pytest.approx(float((g**3).mean()))


def test_heavy_tails_and_skewed_samples_are_seen():
    heavy = normal(500, 2) / normal(500, 1, seed=1).abs().clamp_min(0.2)
    assert min(one.z for one in excess_kurtosis(heavy)) > 5
    assert mardia_kurtosis(heavy).p < 1e-6
    assert min(one.z for one in skewness(normal(500, 2).exp())) > 5
    assert mardia_skewness(normal(500, 2).exp()).z > 5


def test_too_few_samples_are_refused():
    with pytest.raises(UsageError, match="too few"):
        skewness(normal(19, 2))
    with pytest.raises(UsageError, match="too few"):
        mardia_kurtosis(normal(30, 29))


def test_omnibus_equals_scipy():
    for n in (20, 64, 500):
        x = torch.randn(n, 7, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
        x[:, 4:] = x[:, 4:].exp()
        c = x - x.mean(0)
        second = c.square().mean(0)
        skew, tails = c.pow(3).mean(0) / second**1.5, c.pow(4).mean(0) / second**2 - 3
        expected = torch.from_numpy(stats.normaltest(x.numpy()).pvalue)
        assert torch.allclose(omnibus_p(skew, tails, torch.full((7,), float(n)).double()), expected, rtol=1e-9)


def test_relative_kurtosis_is_mardias():
    x = normal(200, 7, seed=4) ** 3 @ normal(7, 7, seed=5)
    for k, (excess, _) in zip((2, 7), relative_kurtosis(x, (2, 7)), strict=True):
        test = mardia_kurtosis(x[:, :k])
        assert excess == pytest.approx(test.value / test.expected - 1)
    single = relative_kurtosis(x, (1,))[0][0]
    assert single == pytest.approx((stats.kurtosis(x[:, 0].numpy()) + 3) / (3 * 199 / 201) - 1)


def test_relative_kurtosis_of_a_mixture():
    """A radius of 1 or 2, equally likely: E r⁴ / (E r²)² − 1 = 8.5 / 6.25 − 1 in any number of dimensions."""
    radius = 1 + (normal(40000, 1, seed=6) > 0).double()
    for excess, _ in relative_kurtosis(radius * normal(40000, 16, seed=7), (1, 4, 16)):
        assert excess == pytest.approx(0.36, abs=0.05)


def test_influence_on_the_kurtosis():
    """The change of the kurtosis when the weight of a sample grows, by a central difference."""
    x = normal(60, 3, seed=8).exp()

    def weighted(weights):
        p = weights / weights.sum()
        c = x - p @ x
        lengths = (c @ torch.linalg.inv((p[:, None] * c).mT @ c) * c).sum(-1)
        return float(p @ lengths.square()) / (3 * 5 * 59 / 61)

    influence = relative_kurtosis(x, (3,))[0][1]
    for index in (0, 17, 41):
        step = torch.zeros(60, dtype=torch.float64)
        step[index] = 1e-5
        slope = (weighted(1 + step) - weighted(1 - step)) / 2e-5
        assert float(influence[index] - influence.mean()) / 60 == pytest.approx(slope, rel=1e-6, abs=1e-9)
