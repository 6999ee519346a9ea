"""Laws and known answers of `headscope.maths.gaussians.crossed_scores`."""

import pytest
import torch

from headscope.errors import UsageError
from headscope.maths.gaussians.bilinear_scores import GaussianPair, score_mean, score_variance
from headscope.maths.gaussians.crossed_scores import crossed_means, crossed_moments

D = 3


def pair(dependence):
    generator = torch.Generator().manual_seed(4)
    root = torch.randn(2 * D, 2 * D, generator=generator, dtype=torch.float64) / 2
    joint = root @ root.mT
    mean = torch.randn(2 * D, generator=generator, dtype=torch.float64) / 2
    cross = dependence * joint[:D, D:]
    return GaussianPair(mean[:D], mean[D:], joint[:D, :D], joint[D:, D:], cross)


def draws(of, texts, copies=400):
    """Scores of `copies` sets of texts, each crossed: [copies, texts, texts]."""
    factor = torch.linalg.cholesky(of.joint_covariance)
    noise = torch.randn(copies, texts, 2 * D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    both = of.joint_mean + noise @ factor.mT
    return both[..., :D] @ both[..., D:].mT


@pytest.mark.parametrize("dependence", [1.0, -0.7, 0.0])
def test_crossed_moments_are_those_of_the_form(dependence):
    of, one = pair(dependence), torch.eye(D, dtype=torch.float64)
    apart = GaussianPair.independent(of.mean_x, of.cov_x, of.mean_y, of.cov_y)
    expected = score_variance(one, of)
    found = crossed_moments(draws(of, 40))
    free = score_variance(one, apart)
    assert float(found.mean.mean()) == pytest.approx(float(score_mean(one, apart)), abs=0.05)
    assert float((found.mean + found.shift).mean()) == pytest.approx(float(score_mean(one, of)), abs=0.05)
    assert float(found.variance.mean()) == pytest.approx(float(free), rel=0.04)
    assert float((found.variance + found.added).mean()) == pytest.approx(float(expected), rel=0.06)
    assert float(found.measured.mean()) == pytest.approx(float(expected), rel=0.04)


def test_the_mean_is_an_identity():
    scores = draws(pair(1.0), 7)
    found = crossed_moments(scores)
    torch.testing.assert_close(found.mean + found.shift, scores.diagonal(dim1=-2, dim2=-1).mean(-1))
    q, k = torch.randn(2, 9, D, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    trace = ((q - q.mean(0)) * (k - k.mean(0))).sum() / 8
    torch.testing.assert_close(crossed_moments(q @ k.mT).shift, trace)


def test_independent_pairs_are_not_shifted():
    found = crossed_moments(draws(pair(0.0), 8, copies=2000))
    assert abs(float(found.shift.mean())) < 4 * float(found.shift.std()) / 2000**0.5
    assert abs(float(found.added.mean())) < 0.05 * float(found.variance.mean())


def test_queries_and_keys_may_be_exchanged():
    scores = draws(pair(1.0), 6, copies=20)
    there, back = crossed_moments(scores), crossed_moments(scores.mT)
    for name in ("mean", "shift", "variance", "added", "measured"):
        torch.testing.assert_close(getattr(there, name), getattr(back, name))


def test_too_few_texts_are_refused():
    with pytest.raises(UsageError, match="at least 2 texts"):
        crossed_means(torch.zeros(1, 1))
    with pytest.raises(UsageError, match="at least 4 texts"):
        crossed_moments(torch.zeros(3, 3))
    crossed_means(torch.zeros(2, 2))
    crossed_moments(torch.zeros(4, 4))
