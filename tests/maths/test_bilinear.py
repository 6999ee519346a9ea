"""Moments of the score of two Gaussian vectors, and of two fixed vectors under random weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.errors import NumericsError, UsageError
from headscope.maths.gaussians.bilinear_scores import (
    GaussianPair,
    score_cumulant,
    score_excess_kurtosis,
    score_mean,
    score_variance,
)
from headscope.maths.linear_algebra.spectrum import participation_ratio
from headscope.maths.random_matrices.random_bilinear import RandomForm

quick = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 10_000)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dependent_pair(n, m, seed=0):
    root = normal(n + m, n + m, seed=seed) / (n + m) ** 0.5
    cov = root @ root.mT
    means = normal(2, max(n, m), seed=seed + 1) / 2
    return GaussianPair(means[0, :n], means[1, :m], cov[:n, :n], cov[n:, n:], cov[:n, n:])


def samples_of(pair, count, seed=0):
    root = torch.linalg.cholesky(pair.joint_covariance)
    drawn = pair.joint_mean + normal(count, len(pair.joint_mean), seed=seed) @ root.mT
    n = len(pair.mean_x)
    return drawn[:, :n], drawn[:, n:]


def within(found, samples, standard_errors=4.0):
    error = float(samples.std() / len(samples) ** 0.5)
    return abs(float(samples.mean()) - float(found)) <= standard_errors * error


@pytest.mark.parametrize("seed", range(3))
def test_moments_are_those_of_samples(seed):
    pair, form = dependent_pair(4, 3, seed), normal(4, 3, seed=seed + 10)
    x, y = samples_of(pair, 200_000, seed + 20)
    score = ((x @ form) * y).sum(-1)
    assert within(score_mean(form, pair), score)
    assert within(score_variance(form, pair), (score - score_mean(form, pair)).square())


def test_the_cross_covariance_enters_transposed():
    pair, form = dependent_pair(3, 3), normal(3, 3, seed=5)
    right = pair.mean_x @ form @ pair.mean_y + torch.trace(form @ pair.cov_xy.mT)
    torch.testing.assert_close(score_mean(form, pair), right)
    assert abs(torch.trace(form @ pair.cov_xy.mT) - torch.trace(form @ pair.cov_xy)) > 0.1


@quick
@given(seed=seeds, n=st.integers(1, 5), m=st.integers(1, 5))
def test_variance_is_the_second_cumulant(seed, n, m):
    pair, form = dependent_pair(n, m, seed), normal(n, m, seed=seed + 10)
    torch.testing.assert_close(score_cumulant(form, pair, 1), score_mean(form, pair), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(score_cumulant(form, pair, 2), score_variance(form, pair), rtol=1e-10, atol=1e-12)


@quick
@given(seed=seeds, n=st.integers(1, 5))
def test_identical_vectors(seed, n):
    root, mean, form = normal(n, n, seed=seed), normal(n, seed=seed + 1), normal(n, n, seed=seed + 2)
    cov = root @ root.mT
    pair = GaussianPair.identical(mean, cov)
    half = (form + form.mT) / 2
    expected = torch.trace(form @ cov) + mean @ form @ mean
    variance = 2 * torch.trace(half @ cov @ half @ cov) + 4 * mean @ half @ cov @ half @ mean
    torch.testing.assert_close(score_mean(form, pair), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(score_variance(form, pair), variance, rtol=1e-9, atol=1e-9)


def test_independent_pairs_have_no_cross_term():
    pair = dependent_pair(3, 4)
    alone = GaussianPair.independent(pair.mean_x, pair.cov_x, pair.mean_y, pair.cov_y)
    form = normal(3, 4, seed=3)
    left = torch.trace(pair.cov_x @ form @ pair.cov_y @ form.mT)
    a, b = form @ pair.mean_y, form.mT @ pair.mean_x
    torch.testing.assert_close(score_variance(form, alone), left + a @ pair.cov_x @ a + b @ pair.cov_y @ b)


def test_kurtosis_is_six_over_the_participation_ratio():
    form = normal(5, 7, seed=1)
    pair = GaussianPair.independent(torch.zeros(5), torch.eye(5), torch.zeros(7), torch.eye(7))
    expected = 6 / participation_ratio(torch.linalg.svdvals(form))
    torch.testing.assert_close(score_excess_kurtosis(form, pair), expected)


def test_kurtosis_of_samples():
    pair, form = dependent_pair(6, 6, 4), normal(6, 6, seed=14)
    x, y = samples_of(pair, 1_000_000, 7)
    score = ((x @ form) * y).sum(-1) - score_mean(form, pair)
    expected = score_cumulant(form, pair, 4) + 3 * score_variance(form, pair) ** 2
    assert within(expected, score.pow(4))


def test_projection_is_the_form_of_a_head():
    pair = dependent_pair(6, 6, 2)
    w_q, w_k, inner = normal(6, 3, seed=1), normal(6, 3, seed=2), normal(3, 3, seed=3)
    form = w_q @ w_k.mT
    for a, b in ((w_q, w_k), (w_q @ inner, w_k @ torch.linalg.inv(inner).mT)):
        projected = pair.projected(a, b)
        for function in (score_mean, score_variance, score_excess_kurtosis):
            torch.testing.assert_close(function(torch.eye(3), projected), function(form, pair), rtol=1e-8, atol=1e-8)


def test_batches_are_independent():
    pairs = [dependent_pair(3, 3, seed) for seed in range(4)]
    names = ("mean_x", "mean_y", "cov_x", "cov_y", "cov_xy")
    batch = GaussianPair(*(torch.stack([getattr(pair, name) for pair in pairs]) for name in names))
    form = normal(4, 3, 3)
    for function in (score_mean, score_variance, score_excess_kurtosis):
        alone = torch.stack([function(form[i], pairs[i]) for i in range(4)])
        torch.testing.assert_close(function(form, batch), alone)


def test_estimated_pairs():
    pair = dependent_pair(3, 2, 1)
    found = GaussianPair.of_samples(*samples_of(pair, 200_000))
    torch.testing.assert_close(found.joint_covariance, pair.joint_covariance, rtol=0, atol=0.03)
    with pytest.raises(UsageError, match="at least 2"):
        GaussianPair.of_samples(normal(1, 3), normal(1, 3))


def test_impossible_covariances_are_refused():
    zero, one = torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    with pytest.raises(NumericsError, match="negative eigenvalue"):
        GaussianPair(zero, zero, one, one, 1.5 * one)
    with pytest.raises(NumericsError, match="not symmetric"):
        GaussianPair.independent(zero, torch.tensor([[1.0, 0.5], [0.0, 1.0]]), zero, one)
    with pytest.raises(NumericsError, match="NaN"):
        GaussianPair.independent(zero / 0, one, zero, one)
    with pytest.raises(UsageError, match="must be 2 × 2"):
        score_mean(torch.zeros(2, 3), GaussianPair.identical(zero, one))


@pytest.mark.parametrize("weights", ["one", "two", "tied"])
def test_moments_of_random_scores(weights):
    x, y = normal(2, 6, seed=1)
    law = RandomForm(weights, 0.3, 4 if weights != "one" else 1)
    score = random_scores(law, x, y, 200_000)
    assert within(law.mean(x, y), score)
    assert within(law.score_variance(x, y), (score - law.mean(x, y)).square())


@pytest.mark.parametrize("weights", ["one", "two", "tied"])
def test_covariances_of_random_scores(weights):
    x, y, other_x, other_y = normal(4, 5, seed=2)
    law = RandomForm(weights, 0.5, 3 if weights != "one" else 1)
    first, second = (random_scores(law, a, b, 200_000) - law.mean(a, b) for a, b in ((x, y), (other_x, other_y)))
    assert within(law.covariance(x, y, other_x, other_y), first * second)


def random_scores(law, x, y, count):
    n = len(x)
    if law.weights == "one":
        return (normal(count, n, n) * law.variance**0.5 @ y) @ x
    a = normal(count, law.inner, n) * law.variance**0.5
    b = a if law.weights == "tied" else normal(count, law.inner, n, seed=1) * law.variance**0.5
    return ((a @ x) * (b @ y)).sum(-1)


def test_impossible_random_forms_are_refused():
    with pytest.raises(UsageError, match="random form"):
        RandomForm("one", 0.0)
