"""Laws and known answers of `headscope.maths.gaussians.gaussian`."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import sklearn.covariance
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.errors import NumericsError, UsageError
from headscope.maths.gaussians.gaussian import (
    Gaussian,
    blocks,
    eigen,
    fitted,
    joined,
    log_determinant,
    map_tokens,
    of_points,
    pseudo_log_determinant,
    rank,
    shrinkage_weight,
    unblocked,
)
from headscope.maths.gaussians.moments import Moments

quick = settings(max_examples=30, deadline=None)
seeds = st.integers(0, 10_000)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def some_gaussian(d, seed=0, batch=()):
    root = normal(*batch, d, d, seed=seed)
    return Gaussian(normal(*batch, d, seed=seed + 1), root @ root.mT + 0.1 * torch.eye(d))


def degenerate(d, r, seed=0):
    root = normal(d, r, seed=seed)
    return Gaussian(normal(d, seed=seed + 1), root @ root.mT)


def test_a_gaussian_is_checked():
    with pytest.raises(UsageError, match="3 × 3"):
        Gaussian(normal(3), normal(2, 2))
    with pytest.raises(UsageError, match="symmetric"):
        Gaussian(normal(2), torch.tensor([[1.0, 0.5], [0.0, 1.0]]))
    with pytest.raises(NumericsError, match="NaN or Inf"):
        Gaussian(normal(2), torch.full((2, 2), float("nan")))
    assert Gaussian(normal(2).float(), torch.eye(2)).covariance.dtype == torch.float64


@quick
@given(seed=seeds, d=st.integers(1, 6))
def test_log_density_equals_scipy(seed, d):
    p = some_gaussian(d, seed)
    x = normal(2, 5, d, seed=seed + 2)
    expected = scipy.stats.multivariate_normal(p.mean.numpy(), p.covariance.numpy()).logpdf(x.reshape(-1, d).numpy())
    np.testing.assert_allclose(p.log_density(x).reshape(-1).numpy(), expected, rtol=1e-10)


@quick
@given(seed=seeds)
def test_mahalanobis_ignores_the_basis(seed):
    p, x, a = some_gaussian(3, seed), normal(7, 3, seed=seed + 5), normal(3, 3, seed=seed + 6) + 3 * torch.eye(3)
    torch.testing.assert_close(p.mapped(a).mahalanobis_squared(x @ a.mT), p.mahalanobis_squared(x), rtol=1e-8, atol=0)


def test_marginal_is_the_integral():
    p = some_gaussian(3, 4)
    kept = p.marginal([2, 0])
    point = torch.tensor([0.3, -0.4], dtype=torch.float64)

    def slab(y):
        return float(p.log_density(torch.tensor([point[1], y, point[0]], dtype=torch.float64)).exp())

    assert float(kept.log_density(point).exp()) == pytest.approx(
        scipy.integrate.quad(slab, -40, 40, points=[-5, 0, 5], limit=200, epsabs=1e-14)[0], rel=1e-10
    )


@quick
@given(seed=seeds)
def test_conditional_is_the_ratio_of_densities(seed):
    p = some_gaussian(5, seed)
    given_at, others = [3, 1], [0, 2, 4]
    x = normal(5, seed=seed + 9)
    found = p.condition(given_at, x[given_at]).log_density(x[others])
    expected = p.log_density(x) - p.marginal(given_at).log_density(x[given_at])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@quick
@given(seed=seeds)
def test_conditioning_narrows(seed):
    p = some_gaussian(4, seed, batch=(3,))
    less = p.condition([0], normal(3, 1, seed=seed)).covariance
    gap = torch.linalg.eigvalsh(p.marginal([1, 2, 3]).covariance - less)
    assert float(gap.min()) > -1e-10


def test_conditioning_on_a_copy():
    p = some_gaussian(2, 1)
    copied = p.mapped(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]))
    value = torch.tensor([0.7], dtype=torch.float64)
    once = p.condition([1], value)
    twice = copied.condition([1, 2], torch.tensor([0.7, 0.7]), singular=True)
    torch.testing.assert_close(twice.mean, once.mean, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(twice.covariance, once.covariance, rtol=1e-9, atol=1e-9)
    with pytest.raises(NumericsError, match="not positive definite"):
        copied.condition([1, 2], torch.tensor([0.7, 0.7]))


def test_impossible_value_is_refused():
    copied = some_gaussian(2, 1).mapped(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]))
    with pytest.raises(UsageError, match="off the subspace"):
        copied.condition([1, 2], torch.tensor([0.7, -0.7]), singular=True)


@quick
@given(seed=seeds, out=st.integers(1, 5))
def test_mapping_commutes_with_fitting(seed, out):
    x, a, shift = normal(30, 3, seed=seed), normal(out, 3, seed=seed + 1), normal(out, seed=seed + 2)
    mapped = fitted(Moments.of(x)).mapped(a, shift)
    refitted = fitted(Moments.of(x @ a.mT + shift), singular=True)
    torch.testing.assert_close(mapped.mean, refitted.mean)
    torch.testing.assert_close(mapped.covariance, refitted.covariance)


def test_samples_have_its_moments():
    p, n = some_gaussian(3, 7), 40_000
    x = p.sample(n, torch.Generator().manual_seed(3))
    c = x - p.mean
    assert bool((c.mean(0).abs() < 4 * (p.covariance.diagonal() / n).sqrt()).all())
    products = c.unsqueeze(-1) * c.unsqueeze(-2)
    assert bool(((products.mean(0) - p.covariance).abs() < 4 * products.std(0) / n**0.5).all())


def test_degenerate_samples_stay_on_the_subspace():
    p = degenerate(5, 2)
    x = p.sample(50, torch.Generator().manual_seed(0)) - p.mean
    assert int(torch.linalg.matrix_rank(x, atol=1e-6)) == 2


def test_samples_of_a_batch():
    assert some_gaussian(3, batch=(2, 4)).sample(6, torch.Generator().manual_seed(0)).shape == (2, 4, 6, 3)


def test_too_few_samples():
    with pytest.raises(NumericsError, match="4 samples cannot fill a covariance in 4 dimensions"):
        fitted(Moments.of(normal(4, 4)))
    assert float(rank(fitted(Moments.of(normal(4, 4)), singular=True).covariance)) == 3
    for name in ("ledoit-wolf", "oas"):
        log_determinant(fitted(Moments.of(normal(4, 4)), name).covariance)
        with pytest.raises(NumericsError, match="at least 2 samples, got 1"):
            fitted(Moments.of(normal(1, 4)), name)


@pytest.mark.parametrize(("n", "d"), [(5, 12), (40, 6), (300, 3), (8, 8)])
def test_shrinkage_equals_scikit_learn(n, d):
    x = normal(n, d, seed=n) @ normal(d, d, seed=d) + 3
    assert_shrunk_as_by_scikit_learn(x)


def test_full_shrinkage_equals_scikit_learn():
    """A cloud that is round up to noise: the weight stops at 1."""
    found = [assert_shrunk_as_by_scikit_learn(normal(50, 3, seed=seed)) for seed in range(10)]
    assert all(max(weights) == 1.0 for weights in zip(*found, strict=True))


def assert_shrunk_as_by_scikit_learn(x):
    n, weights = len(x), []
    moments = Moments.of(x[: n // 2]).merge(Moments.of(x[n // 2 :]))
    for name, peer in (("ledoit-wolf", sklearn.covariance.LedoitWolf()), ("oas", sklearn.covariance.OAS())):
        peer.fit(x.numpy())
        weights.append(float(shrinkage_weight(moments, name)))
        assert weights[-1] == pytest.approx(peer.shrinkage_, rel=1e-10)
        np.testing.assert_allclose(fitted(moments, name).covariance.numpy(), peer.covariance_, rtol=1e-9, atol=1e-11)
    return weights


def test_shrinkage_of_a_sphere():
    d = 4
    x = torch.cat([torch.eye(d), -torch.eye(d)]).double()
    for name in ("ledoit-wolf", "oas"):
        assert float(shrinkage_weight(Moments.of(x), name)) == 1.0
        torch.testing.assert_close(fitted(Moments.of(x), name).covariance, 0.25 * torch.eye(d).double())
    assert float(shrinkage_weight(Moments.of(x), "none")) == 0.0


def test_shrinkage_fades():
    x = normal(40_000, 3) * torch.tensor([1.0, 2.0, 4.0])
    for name in ("ledoit-wolf", "oas"):
        few, many = (float(shrinkage_weight(Moments.of(x[:n]), name)) for n in (400, 40_000))
        assert many == pytest.approx(few / 100, rel=0.4)


def test_shrinkage_pays():
    d, n = 20, 25
    truth = torch.diag(torch.linspace(0.5, 2.0, d).double())
    errors = {"none": 0.0, "ledoit-wolf": 0.0, "oas": 0.0}
    for seed in range(10):
        moments = Moments.of(normal(n, d, seed=seed) @ truth.sqrt())
        for name in errors:
            errors[name] += float((fitted(moments, name).covariance - truth).square().sum())
    assert errors["ledoit-wolf"] < 0.5 * errors["none"]
    assert errors["oas"] < 0.5 * errors["none"]


def test_gaussian_of_points_has_their_moments():
    points, p = normal(4, 3), torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    found = of_points(points, p)
    stacked = torch.cat([points[i].expand(10 * (i + 1), 3) for i in range(4)])
    torch.testing.assert_close(found.mean, stacked.mean(0))
    torch.testing.assert_close(found.covariance, torch.cov(stacked.mT, correction=0))
    for bad in (torch.tensor([0.5, 0.5, 0.5, -0.5]), torch.tensor([0.5, 0.5, 0.5, 0.5])):
        with pytest.raises(UsageError, match="sum to 1"):
            of_points(points, bad)


@quick
@given(seed=seeds, k=st.integers(1, 6))
def test_rank_of_points(seed, k):
    p = torch.softmax(normal(k, seed=seed), 0)
    assert float(rank(of_points(normal(k, 8, seed=seed + 1), p).covariance)) == k - 1


@quick
@given(seed=seeds, d=st.integers(1, 8), size=st.sampled_from([1e-60, 1.0, 1e60]))
def test_log_determinant_equals_slogdet(seed, d, size):
    covariance = some_gaussian(d, seed, batch=(2,)).covariance * size
    np.testing.assert_allclose(
        log_determinant(covariance).numpy(), np.linalg.slogdet(covariance.numpy())[1], rtol=1e-10, atol=1e-10
    )


def test_log_determinant_of_many_dims():
    assert float(log_determinant(1e-3 * torch.eye(400))) == pytest.approx(400 * np.log(1e-3), rel=1e-6)
    assert float(torch.det(1e-3 * torch.eye(400))) == 0.0


def test_singular_has_no_log_determinant():
    for matrix in (degenerate(4, 3).covariance, torch.zeros(2, 2), -torch.eye(2), torch.ones(3, 3)):
        with pytest.raises(NumericsError, match="not positive definite"):
            log_determinant(matrix)
    with pytest.raises(NumericsError, match="not a covariance"):
        eigen(torch.diag(torch.tensor([1.0, -0.1])))


def test_a_matrix_is_singular_or_not_in_any_batch():
    """A pivot of 2e-6 is above the limit for two dimensions, 4.5e-7; it stays so among 400 matrices."""
    nearly_one = (1 - 4e-12) ** 0.5
    matrix = torch.tensor([[1.0, nearly_one], [nearly_one, 1.0]], dtype=torch.float64)
    alone, batch = log_determinant(matrix), log_determinant(matrix.expand(3, 400, 2, 2))
    torch.testing.assert_close(batch, alone.expand(3, 400))


def test_tiny_scales_are_not_singular():
    """Features in very different units are no reason to refuse."""
    units = torch.diag(torch.tensor([1e-9, 1.0, 1e9], dtype=torch.float64))
    covariance = units @ some_gaussian(3).covariance @ units
    assert float(log_determinant(covariance)) == pytest.approx(float(log_determinant(some_gaussian(3).covariance)))


@quick
@given(seed=seeds, d=st.integers(1, 6))
def test_pseudo_determinant_of_a_full_matrix(seed, d):
    covariance = some_gaussian(d, seed).covariance
    found, r = pseudo_log_determinant(covariance)
    assert float(r) == d
    torch.testing.assert_close(found, log_determinant(covariance))


@quick
@given(seed=seeds, r=st.integers(1, 5))
def test_pseudo_determinant_equals_scipy(seed, r):
    covariance = degenerate(6, r, seed).covariance
    found, counted = pseudo_log_determinant(covariance)
    peer = scipy.stats._multivariate._PSD(covariance.numpy())
    assert float(counted) == peer.rank == r
    assert float(found) == pytest.approx(peer.log_pdet, rel=1e-7, abs=1e-7)


def test_pseudo_determinant_of_nothing():
    assert [float(x) for x in pseudo_log_determinant(torch.zeros(3, 3))] == [0.0, 0.0]


def test_blocks_and_back():
    covariance = some_gaussian(6, batch=(2,)).covariance
    parts = blocks(covariance, 3)
    assert parts.shape == (2, 3, 3, 2, 2)
    torch.testing.assert_close(parts[1, 0, 2], covariance[1, 0:2, 4:6])
    torch.testing.assert_close(unblocked(parts), covariance)
    with pytest.raises(UsageError, match="evenly"):
        blocks(covariance, 4)


def test_blocks_are_transposes():
    parts = blocks(fitted(Moments.of(joined(normal(30, 4, 3)))).covariance, 4)
    torch.testing.assert_close(parts, parts.transpose(0, 1).mT)


@quick
@given(seed=seeds, out=st.integers(1, 4))
def test_map_tokens_is_a_kronecker_product(seed, out):
    joint, linear = some_gaussian(6, seed), normal(out, 2, seed=seed + 3)
    found = map_tokens(joint, linear, 3)
    expected = joint.mapped(torch.kron(torch.eye(3).double(), linear))
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.covariance, expected.covariance)


def test_bad_coordinates_are_refused():
    for bad in ([], [0, 0], [5], [-1]):
        with pytest.raises(UsageError, match="from 0 to 2"):
            some_gaussian(3).marginal(bad)
