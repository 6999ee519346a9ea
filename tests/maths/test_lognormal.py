"""Laws and known answers of `headscope.maths.gaussians.lognormal`."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from headscope.errors import NumericsError, UsageError
from headscope.maths.gaussians.lognormal import fenton_wilkinson, moments, ratio_moments

CASES = [(0.0, 0.01), (0.5, 0.16), (-1.0, 2.0)]


@pytest.mark.parametrize(("mean", "variance"), CASES)
def test_moments_equal_scipy(mean, variance):
    law = stats.lognorm(s=math.sqrt(variance), scale=math.exp(mean))
    found = moments(mean, variance)
    assert found.mean == pytest.approx(law.mean(), rel=1e-12)
    assert found.variance == pytest.approx(law.var(), rel=1e-10)


@pytest.mark.parametrize(("mean", "variance"), CASES)
def test_moments_equal_quadrature(mean, variance):
    x, weight = np.polynomial.hermite_e.hermegauss(80)
    weight = weight / weight.sum()
    y = np.exp(mean + math.sqrt(variance) * x)
    found = moments(mean, variance)
    assert found.mean == pytest.approx(weight @ y, rel=1e-11)
    assert found.variance == pytest.approx(weight @ (y - weight @ y) ** 2, rel=1e-10)


def test_ratios_of_sampled_shares():
    mean, covariance = torch.tensor([0.3, -0.2, 0.0]), torch.tensor([[0.4, 0.1, 0.0], [0.1, 0.2, 0.0], [0.0, 0.0, 1.0]])
    factor = torch.linalg.cholesky(covariance.double())
    noise = torch.randn(200_000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p = torch.softmax(mean + noise @ factor.mT, -1)
    ratio = p[:, 0] / p[:, 1]
    found = ratio_moments(0.3, -0.2, 0.4, 0.2, 0.1)
    assert abs(float(ratio.mean()) - found.mean) < 4 * float(ratio.std()) / len(ratio) ** 0.5
    square = (ratio - found.mean).square()
    assert abs(float(square.mean()) - found.variance) < 4 * float(square.std()) / len(ratio) ** 0.5


def test_ratio_to_itself():
    assert ratio_moments(0.7, 0.7, 0.5, 0.5, 0.5) == (1.0, 0.0)


def test_both_ratios_grow():
    forth, back = ratio_moments(0.3, 0.0, 0.5, 0.2, 0.1), ratio_moments(0.0, 0.3, 0.2, 0.5, 0.1)
    assert forth.mean * back.mean == pytest.approx(math.exp(0.5), rel=1e-14)


def test_unusable_moments():
    with pytest.raises(UsageError, match="variance"):
        moments(0.0, -1.0)
    with pytest.raises(UsageError, match="impossible"):
        ratio_moments(0.0, 0.0, 0.1, 0.1, 0.2)
    with pytest.raises(UsageError, match="variances"):
        ratio_moments(0.0, 0.0, -0.1, 0.1)
    with pytest.raises(NumericsError, match="exceed"):
        moments(0.0, 1e4)


def test_fenton_wilkinson_of_one():
    found = fenton_wilkinson(torch.tensor([0.4]), torch.tensor([[0.09]], dtype=torch.float64))
    assert found == pytest.approx((0.4, 0.09), rel=1e-6)
    # Three copies of one number: three times it.
    equal = fenton_wilkinson(torch.zeros(3), torch.full((3, 3), 0.5, dtype=torch.float64))
    assert equal == pytest.approx((math.log(3), 0.5), rel=1e-12)
    large = fenton_wilkinson(torch.zeros(3), torch.full((3, 3), 900.0, dtype=torch.float64))
    assert large == pytest.approx((math.log(3), 900.0), rel=1e-12)


def test_fenton_wilkinson_keeps_two_moments():
    mean = torch.tensor([0.1, -0.4, 0.8], dtype=torch.float64)
    a = torch.randn(3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64) / 2
    covariance = a @ a.mT
    m = torch.exp(mean + covariance.diagonal() / 2)
    first = float(m.sum())
    second = float((m[:, None] * m[None] * covariance.exp()).sum())
    found = moments(*fenton_wilkinson(mean, covariance))
    assert found.mean == pytest.approx(first, rel=1e-12)
    assert found.variance == pytest.approx(second - first**2, rel=1e-11)


def test_fenton_wilkinson_is_good_for_small_variance():
    noise = torch.randn(20_000, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    distances = []
    for sigma in (1.5, 0.3):
        law = fenton_wilkinson(torch.zeros(4), sigma**2 * torch.eye(4, dtype=torch.float64))
        total = (sigma * noise).exp().sum(-1).log()
        distances.append(stats.kstest(total.numpy(), stats.norm(law.mean, math.sqrt(law.variance)).cdf).statistic)
    assert distances[0] > 0.05
    assert distances[1] < 0.02


def test_fenton_wilkinson_refuses():
    with pytest.raises(UsageError, match="symmetric"):
        fenton_wilkinson(torch.zeros(2), torch.tensor([[1.0, 0.5], [0.0, 1.0]]))
    with pytest.raises(UsageError, match="eigenvalue"):
        fenton_wilkinson(torch.zeros(2), torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
    with pytest.raises(NumericsError, match="finite"):
        fenton_wilkinson(torch.tensor([math.nan]), torch.ones(1, 1))
