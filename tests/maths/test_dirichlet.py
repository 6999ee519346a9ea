"""Laws and known answers of `headscope.maths.gaussians.dirichlet`."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from headscope.errors import NumericsError, UsageError
from headscope.maths.gaussians.dirichlet import fit_by_likelihood, fit_by_moments, mean_entropy, share_moments

ALPHA = torch.tensor([0.7, 2.0, 5.0], dtype=torch.float64)


def samples(count, alpha=ALPHA):
    return torch.from_numpy(stats.dirichlet.rvs(alpha.numpy(), count, random_state=np.random.default_rng(0)))


def test_share_moments_equal_scipy():
    law = stats.dirichlet(ALPHA.numpy())
    found = share_moments(ALPHA)
    np.testing.assert_allclose(found.mean.numpy(), law.mean(), rtol=1e-13)
    np.testing.assert_allclose(found.covariance.numpy(), law.cov(), rtol=1e-12)


def test_mean_entropy_of_sampled_shares():
    entropies = torch.special.entr(samples(20_000)).sum(-1)
    error = float(entropies.std()) / len(entropies) ** 0.5
    assert abs(float(entropies.mean()) - float(mean_entropy(ALPHA))) < 4 * error


def test_limits_of_the_mean_entropy():
    assert float(mean_entropy(torch.full((5,), 1e7))) == pytest.approx(math.log(5), abs=1e-6)
    assert float(mean_entropy(torch.full((5,), 1e-9))) == pytest.approx(0.0, abs=1e-7)


def test_fits_recover_the_parameters():
    p = samples(40_000)
    for fit in (fit_by_moments, fit_by_likelihood):
        assert float(((fit(p) - ALPHA) / ALPHA).abs().max()) < 0.04


def test_the_likelihood_has_no_slope_at_the_fit():
    p = samples(50)
    alpha = fit_by_likelihood(p).requires_grad_()
    likelihood = torch.distributions.Dirichlet(alpha, validate_args=False).log_prob(p).mean()
    (slope,) = torch.autograd.grad(likelihood, alpha)
    assert float(slope.abs().max()) < 1e-10


def test_unusable_input():
    with pytest.raises(UsageError, match="positive"):
        mean_entropy(torch.tensor([1.0, 0.0]))
    with pytest.raises(UsageError, match="at least 2 rows"):
        fit_by_moments(torch.tensor([[0.5, 0.5]]))
    with pytest.raises(UsageError, match="sum 1"):
        fit_by_moments(torch.tensor([[0.5, 0.6], [0.5, 0.5]]))
    with pytest.raises(NumericsError, match="no Dirichlet law"):
        fit_by_moments(torch.tensor([[0.5, 0.5], [0.5, 0.5]]))
    with pytest.raises(UsageError, match="positive shares"):
        fit_by_likelihood(torch.tensor([[0.0, 1.0], [0.5, 0.5]]))
