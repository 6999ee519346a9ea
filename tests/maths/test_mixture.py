"""Laws of `headscope.maths.gaussians.linear_mixing`, against scipy, independent quadrature and sampling."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from headscope.errors import NumericsError, UsageError
from headscope.maths.gaussians.linear_mixing import (
    feedback_covariance,
    gelu_moments,
    layer_normed_covariance,
    mixed_covariance,
    mixed_mean,
    mixture_covariance,
    mutual_informations,
    rectified_covariance,
    rectified_moments,
    token_entropies,
)

quick = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 10_000)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def covariance(n, d, seed=0):
    a = normal(n * d, 2 * n * d, seed=seed)
    return (a @ a.mT / (2 * n * d)).reshape(n, d, n, d)


def weights(q, k, seed=0):
    return torch.softmax(normal(q, k, seed=seed), -1)


def number(x):
    return torch.tensor(float(x), dtype=torch.float64)


@quick
@given(n=st.integers(1, 5), q=st.integers(1, 5), d=st.integers(1, 4), seed=seeds)
def test_mixing_equals_the_kronecker_form(n, q, d, seed):
    sigma, w = covariance(n, d, seed), weights(q, n, seed + 1)
    big = torch.kron(w, torch.eye(d, dtype=torch.float64))
    expected = (big @ sigma.reshape(n * d, n * d) @ big.mT).reshape(q, d, q, d)
    torch.testing.assert_close(mixed_covariance(w, sigma), expected, rtol=1e-12, atol=1e-14)


def test_mixing_twice_multiplies_the_weights():
    sigma, a, b = covariance(4, 3), weights(4, 4, 1), weights(5, 4, 2)
    torch.testing.assert_close(
        mixed_covariance(b, mixed_covariance(a, sigma)), mixed_covariance(b @ a, sigma), rtol=1e-12, atol=1e-14
    )


def test_mixing_takes_batches():
    sigma = torch.stack([covariance(3, 2, s) for s in range(4)])
    w = torch.stack([weights(3, 3, s) for s in range(4)])
    torch.testing.assert_close(mixed_covariance(w, sigma)[2], mixed_covariance(w[2], sigma[2]), rtol=0, atol=0)


def test_mixing_agrees_with_sampling():
    n, d, draws = 3, 2, 200_000
    sigma, mu, w = covariance(n, d), normal(n, d, seed=3), weights(n, n, 4)
    root = torch.linalg.cholesky(sigma.reshape(n * d, n * d))
    x = (normal(draws, n * d, seed=5) @ root.mT).reshape(draws, n, d) + mu
    y = (w @ x).reshape(draws, n * d)
    predicted = mixed_covariance(w, sigma).reshape(n * d, n * d)
    spread = torch.diagonal(predicted).sqrt()
    assert bool(((y.mean(0) - mixed_mean(w, mu).reshape(-1)).abs() < 4.5 * spread / draws**0.5).all())
    error = (torch.outer(spread, spread).square() + predicted.square()).sqrt() / draws**0.5
    assert bool(((y.mT.cov() - predicted).abs() < 4.5 * error).all())


def mapped_covariance(sigma, w):
    """The covariance of the tokens X W: every block becomes Wᵀ Σ W."""
    return torch.einsum("iajb,ae,bf->iejf", sigma, w, w)


def test_the_value_map_commutes_with_mixing():
    sigma, w, v = covariance(4, 3), weights(4, 4), normal(3, 2, seed=9)
    torch.testing.assert_close(
        mixed_covariance(w, mapped_covariance(sigma, v)), mapped_covariance(mixed_covariance(w, sigma), v)
    )


def test_entropies_agree_with_scipy():
    n, d = 3, 2
    sigma = covariance(n, d)
    entropies, information = token_entropies(sigma), mutual_informations(sigma)
    for k in range(n):
        block = sigma[k, :, k].numpy()
        assert float(entropies[k]) == pytest.approx(stats.multivariate_normal(cov=block).entropy(), rel=1e-10)
        assert float(information[k, k]) == math.inf
        for j in range(k):
            pair = sigma[[k, j]][:, :, [k, j]].reshape(2 * d, 2 * d).numpy()
            joint = stats.multivariate_normal(cov=pair).entropy()
            expected = float(entropies[k] + entropies[j]) - joint
            assert float(information[k, j]) == pytest.approx(expected, rel=1e-9)
            assert float(information[j, k]) == pytest.approx(expected, rel=1e-9)


def test_information_ignores_invertible_maps():
    sigma, w = covariance(3, 2), normal(2, 2, seed=8)
    found, expected = mutual_informations(mapped_covariance(sigma, w)), mutual_informations(sigma)
    off = ~torch.eye(3, dtype=torch.bool)
    torch.testing.assert_close(found[off], expected[off], rtol=1e-9, atol=1e-12)


def test_equal_rows_share_everything():
    w = torch.tensor([[0.3, 0.7], [0.3, 0.7]], dtype=torch.float64)
    assert bool((mutual_informations(mixed_covariance(w, covariance(2, 2))) == math.inf).all())


def test_singular_covariances_are_refused():
    sigma = torch.zeros(2, 2, 2, 2, dtype=torch.float64)
    sigma[0, :, 0], sigma[1, :, 1] = torch.eye(2), torch.ones(2, 2)
    for function in (token_entropies, mutual_informations):
        with pytest.raises(NumericsError, match="singular"):
            function(sigma)
    with pytest.raises(NumericsError, match="NaN"):
        mixed_covariance(torch.full((2, 2), torch.nan), sigma)


def test_a_mixture_is_wider_than_an_average():
    n, d, draws = 3, 2, 200_000
    mu, sigma, w = 2 * normal(n, d, seed=3), covariance(n, d), weights(1, n, 4)
    parts = torch.stack([sigma[i, :, i] for i in range(n)])
    mixture, average = mixture_covariance(w, mu, parts)[0], mixed_covariance(w, sigma)[0, :, 0]
    assert float(torch.linalg.eigvalsh(mixture - average).min()) > -1e-12
    which = torch.multinomial(w[0], draws, replacement=True, generator=torch.Generator().manual_seed(1))
    roots = torch.linalg.cholesky(parts)
    x = mu[which] + torch.einsum("sab,sb->sa", roots[which], normal(draws, d, seed=6))
    centred = x - x.mean(0)
    products = torch.einsum("sa,sb->sab", centred, centred)
    assert bool(((products.mean(0) - mixture).abs() < 4.5 * products.std(0) / draws**0.5).all())
    with pytest.raises(UsageError, match="sum to 1"):
        mixture_covariance(2 * w, mu, parts)


def test_feedback_agrees_with_sampling():
    n, d, draws = 5, 3, 400_000
    form = 0.01 * normal(d, d, seed=2)
    x = normal(draws, n, d, seed=1)
    # Half the difference between the form and its negative: what is even in it cancels, and with it most of the noise.
    squares = []
    for sign in (1, -1):
        out = (torch.softmax(sign * x[:, :1] @ form @ x.mT, -1) @ x)[:, 0]
        squares.append(torch.einsum("sa,sb->sab", out, out))
    odd = (squares[0] - squares[1]) / 2
    predicted = feedback_covariance(form, n) - torch.eye(d, dtype=torch.float64) / n
    error = odd.std(0) / draws**0.5
    assert bool(((odd.mean(0) - predicted).abs() < 4.5 * error + 1e-5).all())
    assert float((predicted.abs() / error).max()) > 50
    with pytest.raises(UsageError, match="at least 1 token"):
        feedback_covariance(form, 0)


def quadrature(f, mu, sd):
    points = sorted({max(min(0.0, mu + 11 * sd), mu - 11 * sd), mu})
    value, _ = integrate.quad(
        lambda x: f(x) * stats.norm.pdf(x, mu, sd), mu - 12 * sd, mu + 12 * sd, points=points, limit=400,
        epsabs=1e-14, epsrel=1e-12,
    )  # fmt: skip
    return value


CASES = [(0.0, 1.0), (1.5, 0.3), (-2.0, 1.0), (0.3, 20.0), (-4.0, 9.0), (2.0, 1e-4)]


@pytest.mark.parametrize(("mu", "variance"), CASES)
def test_rectified_moments_agree_with_quadrature(mu, variance):
    sd = math.sqrt(variance)
    first, second = (quadrature(lambda x, p=p: max(x, 0.0) ** p, mu, sd) for p in (1, 2))
    mean, spread = rectified_moments(number(mu), number(variance))
    assert float(mean) == pytest.approx(first, rel=1e-9, abs=1e-12)
    assert float(spread) == pytest.approx(second - first**2, rel=1e-6 if variance < 1e-3 else 1e-9, abs=1e-12)


@pytest.mark.parametrize(("mu", "variance"), CASES)
def test_gelu_moments_agree_with_quadrature(mu, variance):
    sd = math.sqrt(variance)
    first, second = (quadrature(lambda x, p=p: (x * stats.norm.cdf(x)) ** p, mu, sd) for p in (1, 2))
    mean, spread = gelu_moments(number(mu), number(variance))
    assert float(mean) == pytest.approx(first, rel=1e-9, abs=1e-12)
    assert float(spread) == pytest.approx(second - first**2, rel=1e-6 if variance < 1e-3 else 1e-9, abs=1e-11)


def test_moments_without_spread_are_the_functions():
    mu, zero = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for moments, function in ((rectified_moments, torch.relu), (gelu_moments, torch.nn.functional.gelu)):
        mean, spread = moments(mu, zero)
        torch.testing.assert_close(mean, function(mu))
        torch.testing.assert_close(spread, zero)
    with pytest.raises(NumericsError, match="negative"):
        rectified_moments(mu, zero - 1)


def test_rectified_covariance_is_the_arc_cosine_kernel():
    rho = torch.linspace(-1, 1, 9, dtype=torch.float64)
    sigma = torch.ones(9, 2, 2, dtype=torch.float64)
    sigma[:, 0, 1] = sigma[:, 1, 0] = rho
    found = rectified_covariance(torch.zeros(9, 2, dtype=torch.float64), sigma)[:, 0, 1]
    kernel = ((1 - rho.square()).sqrt() + rho * (math.pi - torch.acos(rho))) / (2 * math.pi)
    torch.testing.assert_close(found, kernel - 1 / (2 * math.pi), rtol=1e-10, atol=1e-13)


@quick
@given(d=st.integers(1, 4), seed=seeds)
def test_rectified_covariance_has_the_variance_on_its_diagonal(d, seed):
    mu, sigma = normal(d, seed=seed), covariance(1, d, seed + 1)[0, :, 0]
    _, variance = rectified_moments(mu, torch.diagonal(sigma))
    torch.testing.assert_close(torch.diagonal(rectified_covariance(mu, sigma)), variance, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("a", "b", "rho"), [(0.5, -0.7, 0.6), (1.2, 0.1, -0.8), (-0.4, -0.9, 0.95)])
def test_rectified_covariance_agrees_with_quadrature(a, b, rho):
    # The inner integral is the mean of a rectified normal, the outer one is done numerically.
    def inner(x):
        mu, sd = b + rho * (x - a), math.sqrt(1 - rho**2)
        return x * (mu * stats.norm.cdf(mu / sd) + sd * stats.norm.pdf(mu / sd)) * stats.norm.pdf(x - a)

    joint, _ = integrate.quad(inner, 0, 14, epsabs=1e-14, epsrel=1e-12, limit=300)
    mu = torch.tensor([a, b], dtype=torch.float64)
    sigma = torch.tensor([[1, rho], [rho, 1]], dtype=torch.float64)
    means, _ = rectified_moments(mu, torch.ones(2, dtype=torch.float64))
    expected = joint - float(means.prod())
    assert float(rectified_covariance(mu, sigma)[0, 1]) == pytest.approx(expected, rel=1e-9)


def test_a_correlation_above_one_is_refused():
    with pytest.raises(NumericsError, match="correlation"):
        rectified_covariance(torch.zeros(2), torch.tensor([[1.0, 2.0], [2.0, 1.0]]))


def test_layer_norm_of_isotropic_tokens():
    d = 7
    eye = torch.eye(d, dtype=torch.float64)
    torch.testing.assert_close(layer_normed_covariance(3 * eye), d / (d - 1) * (eye - 1 / d), rtol=1e-10, atol=1e-12)


@quick
@given(d=st.integers(2, 9), exponent=st.sampled_from([-6, 0, 6]), seed=seeds)
def test_layer_normed_tokens_have_length_sqrt_d(d, exponent, seed):
    sigma = covariance(1, d, seed)[0, :, 0] * 10.0**exponent
    found = layer_normed_covariance(sigma)
    assert float(torch.diagonal(found).sum()) == pytest.approx(d, rel=1e-10)
    assert float(found.sum()) == pytest.approx(0.0, abs=1e-9)


def test_layer_norm_of_one_direction():
    direction = torch.tensor([1.0, -2.0, 4.0], dtype=torch.float64)
    centred = direction - direction.mean()
    unit = centred / centred.norm()
    torch.testing.assert_close(
        layer_normed_covariance(torch.outer(direction, direction)), 3 * torch.outer(unit, unit), rtol=1e-9, atol=1e-10
    )


def test_layer_norm_agrees_with_sampling():
    d, draws = 4, 200_000
    sigma = covariance(1, d, 5)[0, :, 0]
    x = normal(draws, d, seed=2) @ torch.linalg.cholesky(sigma).mT
    y = torch.nn.functional.layer_norm(x, (d,), eps=0.0)
    products = torch.einsum("sa,sb->sab", y, y)
    error = products.std(0) / draws**0.5
    assert bool(((products.mean(0) - layer_normed_covariance(sigma)).abs() < 4.5 * error).all())


def test_layer_norm_without_a_length_is_refused():
    with pytest.raises(NumericsError, match="all equal"):
        layer_normed_covariance(torch.zeros(3, 3))
    with pytest.raises(NumericsError, match="positive semi-definite"):
        layer_normed_covariance(torch.diag(torch.tensor([1.0, -5.0, 3.0])))
