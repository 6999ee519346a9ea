"""Laws and known answers of `headscope.maths.gaussians.information`."""

import itertools
import math

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.errors import NumericsError, UsageError
from headscope.maths.gaussians.gaussian import Gaussian
from headscope.maths.gaussians.information import (
    LN_2,
    canonical_correlations,
    cross_entropy,
    discrete_cross_entropy,
    discrete_entropy,
    discrete_kl,
    discrete_mutual_information,
    entropy,
    jensen_shannon,
    kl,
    mutual_information,
    pointwise_information,
)

quick = settings(max_examples=30, deadline=None)
seeds = st.integers(0, 10_000)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def some_gaussian(d, seed=0, batch=()):
    root = normal(*batch, d, d, seed=seed)
    return Gaussian(normal(*batch, d, seed=seed + 1), root @ root.mT + 0.1 * torch.eye(d))


def on_the_line(mean, sd):
    return Gaussian(torch.tensor([mean], dtype=torch.float64), torch.tensor([[sd**2]], dtype=torch.float64))


def degenerate(d, r, seed=0):
    root = normal(d, r, seed=seed)
    return Gaussian(normal(d, seed=seed + 1), root @ root.mT)


def invertible(d, seed):
    return torch.linalg.qr(normal(d, d, seed=seed)).Q @ torch.diag(torch.linspace(0.3, 2.0, d).double())


@quick
@given(seed=seeds, d=st.integers(1, 6))
def test_entropy_equals_scipy(seed, d):
    p = some_gaussian(d, seed)
    expected = scipy.stats.multivariate_normal(p.mean.numpy(), p.covariance.numpy()).entropy()
    assert float(entropy(p)) == pytest.approx(float(expected), rel=1e-10, abs=1e-10)


@quick
@given(seed=seeds)
def test_entropy_under_a_linear_map(seed):
    p, a = some_gaussian(4, seed, batch=(2,)), invertible(4, seed)
    grown = entropy(p) + float(torch.linalg.slogdet(a).logabsdet)
    torch.testing.assert_close(entropy(p.mapped(a.expand(2, 4, 4))), grown)


def test_singular_has_no_entropy():
    with pytest.raises(NumericsError, match="not positive definite"):
        entropy(degenerate(4, 2))


@quick
@given(seed=seeds, d=st.integers(1, 6))
def test_cross_entropy_with_itself(seed, d):
    p = some_gaussian(d, seed)
    torch.testing.assert_close(cross_entropy(p, p), entropy(p))


def test_cross_entropy_is_the_integral():
    p, q = on_the_line(0.4, 0.7), on_the_line(-0.2, 1.9)
    a, b = scipy.stats.norm(0.4, 0.7), scipy.stats.norm(-0.2, 1.9)
    integral = scipy.integrate.quad(lambda x: -a.pdf(x) * b.logpdf(x), -12, 12, epsabs=1e-13)[0]
    assert float(cross_entropy(p, q)) == pytest.approx(integral, rel=1e-10)


@quick
@given(seed=seeds, d=st.integers(1, 6))
def test_kl_is_not_negative(seed, d):
    p, q = some_gaussian(d, seed), some_gaussian(d, seed + 77)
    assert float(kl(p, q)) > 0
    assert float(kl(p, p)) == pytest.approx(0, abs=1e-13)
    assert float(kl(p, q)) == pytest.approx(float(cross_entropy(p, q) - entropy(p)), rel=1e-8, abs=1e-8)


@quick
@given(seed=seeds, d=st.integers(1, 5))
def test_kl_equals_torch(seed, d):
    p, q = some_gaussian(d, seed, batch=(3,)), some_gaussian(d, seed + 77, batch=(3,))
    peers = [torch.distributions.MultivariateNormal(g.mean, g.covariance) for g in (p, q)]
    torch.testing.assert_close(kl(p, q), torch.distributions.kl_divergence(*peers), rtol=1e-9, atol=1e-10)


def test_kl_of_near_equals_keeps_its_digits():
    """KL of N(0, 1 + ε) to N(0, 1) is ε²/4 − ε³/6 + …: at ε = 1e-5 the plain formula has lost half its digits."""
    eps = 1e-5
    found = kl(on_the_line(0.0, math.sqrt(1 + eps)), on_the_line(0.0, 1.0))
    assert float(found) == pytest.approx(eps**2 / 4 - eps**3 / 6, rel=1e-5)


@quick
@given(seed=seeds)
def test_kl_ignores_the_basis(seed):
    p, q, a = some_gaussian(3, seed), some_gaussian(3, seed + 77), invertible(3, seed)
    shift = normal(3, seed=seed)
    torch.testing.assert_close(kl(p.mapped(a, shift), q.mapped(a, shift)), kl(p, q), rtol=1e-8, atol=1e-9)


@quick
@given(seed=seeds)
def test_mutual_information_is_the_ratio_of_determinants(seed):
    p = some_gaussian(5, seed, batch=(2,))
    c = p.covariance
    ratio = torch.det(c[:, :2, :2]) * torch.det(c[:, 2:, 2:]) / torch.det(c)
    torch.testing.assert_close(mutual_information(p, [0, 1], [2, 3, 4]), ratio.log() / 2, rtol=1e-8, atol=1e-9)


@quick
@given(seed=seeds)
def test_mutual_information_identities(seed):
    p = some_gaussian(5, seed)
    a, b = p.marginal([0, 1]), p.marginal([2, 3, 4])
    found = mutual_information(p, range(2), range(2, 5))
    torch.testing.assert_close(found, entropy(a) + entropy(b) - entropy(p), rtol=1e-8, atol=1e-9)
    product = Gaussian(p.mean, torch.block_diag(a.covariance, b.covariance))
    torch.testing.assert_close(found, kl(p, product), rtol=1e-8, atol=1e-9)


def test_mutual_information_of_independent_blocks():
    product = Gaussian(normal(4), torch.block_diag(some_gaussian(2).covariance, some_gaussian(2, 5).covariance))
    assert float(mutual_information(product, [0, 1], [2, 3])) == 0.0


@quick
@given(seed=seeds)
def test_mutual_information_ignores_the_bases(seed):
    p = some_gaussian(5, seed)
    a = torch.block_diag(invertible(2, seed), invertible(3, seed + 1))
    for number in (mutual_information, canonical_correlations):
        torch.testing.assert_close(
            number(p.mapped(a), [0, 1], [2, 3, 4]), number(p, [0, 1], [2, 3, 4]), rtol=1e-8, atol=1e-9
        )


@quick
@given(seed=seeds)
def test_data_processing(seed):
    p = some_gaussian(5, seed)
    a = torch.block_diag(normal(1, 2, seed=seed), torch.eye(3).double())
    assert float(mutual_information(p.mapped(a), [0], [1, 2, 3])) <= float(mutual_information(p, [0, 1], [2, 3, 4])) * (
        1 + 1e-12
    )


def test_canonical_correlations_known():
    p = Gaussian(torch.zeros(2), torch.tensor([[4.0, -3.0], [-3.0, 9.0]]))
    assert float(canonical_correlations(p, [0], [1])) == pytest.approx(0.5)
    assert float(mutual_information(p, [0], [1])) == pytest.approx(-0.5 * math.log(0.75))
    with pytest.raises(UsageError, match="overlap"):
        canonical_correlations(p, [0, 1], [1])


@quick
@given(seed=seeds)
def test_a_copied_feature_has_infinite_information(seed):
    """Also where rounding makes the correlation a little less than 1."""
    copies = torch.cat([torch.eye(3), normal(1, 3, seed=seed).float(), torch.eye(3)[1:]])
    with pytest.raises(UsageError, match="infinite"):
        mutual_information(some_gaussian(3, seed).mapped(copies), [0, 1], [3, 4])


def test_infinite_information_is_an_error():
    p = Gaussian(torch.zeros(2), torch.ones(2, 2))
    with pytest.raises(UsageError, match="infinite"):
        mutual_information(p, [0], [1])


@pytest.mark.parametrize(
    ("mean", "sd"), [(0.0, 1.0), (0.1, 1.0), (3.0, 0.2), (-1.0, 30.0), (40.0, 1.0), (0.5, 0.004), (0.2, 300.0)]
)
def test_jensen_shannon_equals_scipy(mean, sd):
    a, b = scipy.stats.norm(0, 1), scipy.stats.norm(mean, sd)

    def integrand(x):
        la, lb = a.logpdf(x), b.logpdf(x)
        lm = np.logaddexp(la, lb) - LN_2
        return 0.5 * (math.exp(la) * (la - lm) + math.exp(lb) * (lb - lm))

    cuts = sorted({c + s * k for c, s in ((0.0, 1.0), (mean, sd)) for k in (-14, -7, -4, -2, -1, 0, 1, 2, 4, 7, 14)})
    expected = sum(
        scipy.integrate.quad(integrand, low, high, epsabs=1e-14, epsrel=1e-13, limit=300)[0]
        for low, high in itertools.pairwise(cuts)
    )
    found = float(jensen_shannon(on_the_line(0.0, 1.0), on_the_line(mean, sd)))
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


@quick
@given(seed=seeds)
def test_jensen_shannon_is_symmetric_and_bounded(seed):
    p, q = some_gaussian(1, seed, batch=(5,)), some_gaussian(1, seed + 9, batch=(5,))
    found = jensen_shannon(p, q)
    assert bool(((found >= 0) & (found <= LN_2)).all())
    torch.testing.assert_close(found, jensen_shannon(q, p), rtol=1e-12, atol=1e-15)
    assert float(jensen_shannon(p, p).max()) < 1e-14


@quick
@given(seed=seeds)
def test_root_of_jensen_shannon_is_a_metric(seed):
    p, q, r = (some_gaussian(1, seed + 10 * i, batch=(20,)) for i in range(3))
    direct, first, second = (jensen_shannon(*pair).sqrt() for pair in ((p, r), (p, q), (q, r)))
    assert bool((direct <= first + second + 1e-9).all())


def test_jensen_shannon_refuses():
    with pytest.raises(UsageError, match="one dimension"):
        jensen_shannon(some_gaussian(2), some_gaussian(2))
    with pytest.raises(UsageError, match="without variance"):
        jensen_shannon(on_the_line(0.0, 0.0), on_the_line(0.0, 1.0))
    for number in (kl, cross_entropy):
        with pytest.raises(UsageError, match="2 and 3 dimensions"):
            number(some_gaussian(2), some_gaussian(3))


@quick
@given(seed=seeds, n=st.integers(1, 8))
def test_discrete_numbers_equal_scipy(seed, n):
    p, q = torch.softmax(3 * normal(n, seed=seed), 0), torch.softmax(normal(n, seed=seed + 1), 0)
    p = torch.where(p > 0.05, p, 0.0)
    p = p / p.sum()
    assert float(discrete_entropy(p)) == pytest.approx(scipy.stats.entropy(p.numpy()), rel=1e-10, abs=1e-12)
    expected = scipy.special.rel_entr(p.numpy(), q.numpy()).sum()
    assert float(discrete_kl(p, q)) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert 0 <= float(discrete_entropy(p)) <= math.log(n) + 1e-12


@quick
@given(seed=seeds)
def test_discrete_identities(seed):
    joint = torch.softmax(2 * normal(12, seed=seed), 0).reshape(3, 4)
    x, y = joint.sum(1), joint.sum(0)
    found = discrete_mutual_information(joint)
    expected = discrete_entropy(x) + discrete_entropy(y) - discrete_entropy(joint.flatten())
    assert float(found) == pytest.approx(float(expected), abs=1e-12)
    assert float(discrete_mutual_information(x[:, None] * y)) == pytest.approx(0, abs=1e-14)
    other = torch.softmax(normal(3, seed=seed + 1), 0)
    torch.testing.assert_close(discrete_cross_entropy(x, other), discrete_entropy(x) + discrete_kl(x, other))


def test_discrete_edges():
    sure, even = torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5])
    assert float(discrete_entropy(sure)) == 0.0
    assert float(discrete_kl(even, sure)) == math.inf
    assert float(discrete_cross_entropy(even, sure)) == math.inf
    assert float(discrete_kl(sure, even)) == pytest.approx(LN_2)
    for bad in (torch.tensor([0.5, 0.6]), torch.tensor([1.5, -0.5])):
        with pytest.raises(UsageError, match="sum to 1"):
            discrete_entropy(bad)


def test_pointwise_information_equals_scipy():
    joint = _joint_of(5)
    z = joint.sample(20, torch.Generator().manual_seed(2))
    a, b = [3, 0], [1, 4]
    found = pointwise_information(joint, a, b, z)
    mean, cov = joint.mean.numpy(), joint.covariance.numpy()

    def log_density(index):
        law = scipy.stats.multivariate_normal(mean[index], cov[np.ix_(index, index)])
        return law.logpdf(z[:, index].numpy())

    np.testing.assert_allclose(found, log_density(a + b) - log_density(a) - log_density(b), rtol=1e-9)


def test_pointwise_information_has_the_mean_it_should():
    joint = _joint_of(4)
    z = joint.sample(200_000, torch.Generator().manual_seed(3))
    found = pointwise_information(joint, [0, 1], [2, 3], z)
    error = float(found.std()) / len(z) ** 0.5
    assert abs(float(found.mean() - mutual_information(joint, [0, 1], [2, 3]))) < 4 * error


def _joint_of(d):
    root = torch.randn(d, 2 * d, generator=torch.Generator().manual_seed(d), dtype=torch.float64)
    return Gaussian(torch.arange(float(d), dtype=torch.float64), root @ root.mT / (2 * d))
