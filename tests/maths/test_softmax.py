"""Laws and known answers of `headscope.maths.attention.softmax`."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from headscope.errors import NumericsError, UsageError
from headscope.maths.attention.softmax import (
    GaussianRows,
    _gaussian_entropy,
    _gaussian_row,
    entropy,
    entropy_expansion,
    gaussian_entropy,
    jacobian,
    jacobian_operator_norm,
    log_sum_exp,
    softmax,
)

quick = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 10_000)
sizes = st.integers(1, 12)
scales = st.sampled_from([1e-8, 1e-2, 1.0, 30.0, 1e4])


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def log_mean_exp(n, variance):
    """The mean of ln(1/n Σ eˢ) for n independent Gaussian scores of mean 0, by quadrature."""
    row = _gaussian_row(math.sqrt(variance), 1)
    return float(row.free_energy(torch.tensor([float(n)], dtype=torch.float64))) - math.log(n)


def assert_close(found, expected, tolerance=1e-12):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=1e-300)


@quick
@given(n=sizes, scale=scales, seed=seeds)
def test_shares_sum_to_one(n, scale, seed):
    p = softmax(scale * normal(3, n, seed=seed))
    assert bool((p >= 0).all())
    assert_close(p.sum(-1), torch.ones(3, dtype=torch.float64))


@quick
@given(n=sizes, constant=st.sampled_from([-1e6, -3.0, 1e6]), seed=seeds)
def test_shares_ignore_a_constant(n, constant, seed):
    s = normal(n, seed=seed)
    assert_close(softmax(s + constant), softmax(s), 1e-9)


@quick
@given(n=sizes, scale=scales, seed=seeds, temperature=st.sampled_from([0.3, 1.0, 7.0]))
def test_shares_equal_torch(n, scale, seed, temperature):
    s = scale * normal(2, n, seed=seed)
    assert_close(softmax(s, temperature), torch.softmax(s / temperature, -1), 1e-11)


def test_limits_of_temperature():
    s = torch.tensor([[1.0, 3.0, 3.0, -math.inf], [2.0, 0.0, 1.0, 1.5]])
    assert_close(softmax(s, 0.0), torch.tensor([[0, 0.5, 0.5, 0], [1, 0, 0, 0]], dtype=torch.float64))
    third = 1 / 3
    flat = torch.tensor([[third, third, third, 0], [0.25] * 4], dtype=torch.float64)
    assert_close(softmax(s, math.inf), flat)
    assert_close(softmax(s, 1e-4), softmax(s, 0.0))
    assert_close(softmax(s, 1e12), flat, 1e-10)
    for bad in (-1.0, math.nan):
        with pytest.raises(UsageError, match="temperature"):
            softmax(s, bad)


@pytest.mark.parametrize("temperature", [0.0, 0.5, math.inf])
def test_a_row_that_sees_nothing(temperature):
    s = torch.tensor([[-math.inf] * 3, [0.0, -math.inf, 0.0]])
    p = softmax(s, temperature)
    assert p.tolist() == [[0.0, 0.0, 0.0], [0.5, 0.0, 0.5]]
    assert entropy(p).tolist() == [0.0, pytest.approx(math.log(2))]
    assert jacobian_operator_norm(p).tolist() == [0.0, pytest.approx(0.5)]
    assert jacobian(p)[0].count_nonzero() == 0
    assert log_sum_exp(s)[0] == -math.inf


@quick
@given(n=sizes, scale=scales, seed=seeds)
def test_log_sum_exp_is_near_the_largest(n, scale, seed):
    s = scale * normal(n, seed=seed)
    excess = float(log_sum_exp(s) - s.max())
    assert -1e-9 * scale <= excess <= math.log(n) + 1e-9 * scale


def test_gradient_of_log_sum_exp():
    s = normal(7).requires_grad_()
    (gradient,) = torch.autograd.grad(log_sum_exp(s), s)
    assert_close(gradient, softmax(s.detach()))


@quick
@given(n=sizes, scale=scales, seed=seeds)
def test_entropy_is_bounded(n, scale, seed):
    value = float(entropy(softmax(scale * normal(n, seed=seed))))
    assert -1e-12 <= value <= math.log(n) + 1e-12


@quick
@given(n=sizes, seed=seeds)
def test_entropy_equals_scipy(n, seed):
    p = softmax(3 * normal(n, seed=seed))
    assert float(entropy(p)) == pytest.approx(stats.entropy(p.numpy()), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("order", [2, 3, 4])
def test_order_of_the_entropy_expansion(order):
    s = normal(40, seed=1)
    errors = [abs(float(entropy_expansion(e * s, order) - entropy(softmax(e * s)))) for e in (0.08, 0.04)]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order + 1, abs=0.25)


def test_entropy_expansion_of_equal_scores():
    assert float(entropy_expansion(torch.full((5,), 3.0), 4)) == pytest.approx(math.log(5), rel=1e-14)
    with pytest.raises(UsageError, match="orders"):
        entropy_expansion(torch.zeros(3), 5)
    with pytest.raises(UsageError, match="hidden"):
        entropy_expansion(torch.tensor([0.0, -math.inf]))


@pytest.mark.parametrize("n", [2, 7, 100, 2000])
@pytest.mark.parametrize("sigma", [0.3, 1.5, 4.0])
def test_entropy_of_gaussian_scores(n, sigma):
    scores = sigma * normal(200_000 // n, n, seed=1)
    measured = entropy(softmax(scores))
    error = float(measured.std()) / len(measured) ** 0.5
    assert abs(float(measured.mean()) - gaussian_entropy(n, sigma**2)) < 4 * error
    lifted = log_sum_exp(scores) - math.log(n)
    error = float(lifted.std()) / len(lifted) ** 0.5
    assert abs(float(lifted.mean()) - log_mean_exp(n, sigma**2)) < 4 * error


def test_entropy_of_almost_equal_gaussian_scores():
    for n in (2, 9, 1000):
        assert gaussian_entropy(n, 0.0) == math.log(n)
        lack = math.log(n) - gaussian_entropy(n, 1e-4)
        assert lack == pytest.approx(1e-4 / 2 * (1 - 1 / n), rel=1e-3)
    assert gaussian_entropy(1, 3.0) == 0.0


@pytest.mark.parametrize("sigma", [0.1, 1.0, 5.0, 20.0])
def test_quadrature_of_the_gaussian_entropy(sigma):
    for n in (2, 300, 50_000):
        assert _gaussian_entropy(n, sigma, 1) == pytest.approx(_gaussian_entropy(n, sigma, 2), abs=1e-9)


def test_interpolated_gaussian_rows():
    n = torch.tensor([2, 9, 512, 8192, 8192, 1])
    variance = torch.tensor([0.0, 0.3, 12.0, 45.0, 1e4, 2.0], dtype=torch.float64)
    entropies, lifted = GaussianRows()(n, variance)
    for count, v, h, f in zip(n.tolist(), variance.tolist(), entropies.tolist(), lifted.tolist(), strict=True):
        assert h == pytest.approx(gaussian_entropy(count, min(v, 400.0)), abs=1e-6)
        assert f == pytest.approx(log_mean_exp(count, min(v, 400.0)), abs=1e-6)


def test_gaussian_entropy_is_refused():
    with pytest.raises(UsageError):
        gaussian_entropy(0, 1.0)
    with pytest.raises(UsageError, match="up to"):
        gaussian_entropy(3, 1e4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_shares_of_short_floats(dtype):
    p = torch.softmax(normal(4, 3000), -1).to(dtype)
    assert float((entropy(p) - entropy(torch.softmax(normal(4, 3000), -1))).abs().max()) < 0.01
    assert bool((jacobian_operator_norm(p) > 0).all())


@quick
@given(n=sizes, seed=seeds)
def test_jacobian_equals_autograd(n, seed):
    s = normal(n, seed=seed)
    expected = torch.autograd.functional.jacobian(lambda x: torch.softmax(x, -1), s)
    torch.testing.assert_close(jacobian(softmax(s)), expected, rtol=1e-11, atol=1e-15)


@quick
@given(n=sizes, seed=seeds)
def test_jacobian_is_a_covariance(n, seed):
    p = softmax(2 * normal(n, seed=seed))
    j = jacobian(p)
    assert torch.equal(j, j.mT)
    assert float(j.sum(-1).abs().max()) < 1e-14
    assert float(torch.linalg.eigvalsh(j).min()) > -1e-14
    assert float(j.trace()) == pytest.approx(1 - float(p.square().sum()), abs=1e-14)


@quick
@given(n=st.integers(2, 12), scale=st.sampled_from([1e-6, 0.1, 1.0, 10.0]), seed=seeds)
def test_jacobian_norms_equal_the_dense_ones(n, scale, seed):
    p = softmax(scale * normal(3, n, seed=seed))
    dense = jacobian(p)
    expected = torch.linalg.eigvalsh(dense)[..., -1]
    torch.testing.assert_close(jacobian_operator_norm(p), expected, rtol=1e-10, atol=1e-15)


def test_jacobian_norms_known():
    flat = torch.full((4,), 0.25)
    assert float(jacobian_operator_norm(flat)) == 0.25
    assert float(jacobian_operator_norm(torch.tensor([0.5, 0.5, 0.0]))) == 0.5
    one = torch.tensor([0.0, 1.0, 0.0])
    assert float(jacobian_operator_norm(one)) == 0.0
    assert float(jacobian_operator_norm(torch.ones(1))) == 0.0
    random = softmax(3 * normal(200, 9))
    assert float(jacobian_operator_norm(random).max()) <= 0.5


@pytest.mark.parametrize("small", [0.3, 1e-3, 1e-20, 1e-200])
def test_jacobian_norm_of_two_keys(small):
    p = torch.tensor([1 - small, small], dtype=torch.float64)
    assert float(jacobian_operator_norm(p)) == pytest.approx(2 * small * (1 - small), rel=1e-12)


def test_jacobian_norm_of_spread_shares():
    """Shares over many powers of ten, in a cluster below the second, and too small for a square to be a number."""
    geometric = 2.0 ** -torch.arange(1.0, 60.0, dtype=torch.float64)
    cluster = torch.cat((torch.ones(1), 0.01 * (1 - 1 / torch.arange(1.0, 2000.0, dtype=torch.float64))))
    near = torch.tensor([1.0, 1 - 1e-15, 0.3, 0.3], dtype=torch.float64)
    for p in (one / one.sum() for one in (geometric, cluster, near)):
        expected = float(torch.linalg.eigvalsh(jacobian(p))[-1])
        assert float(jacobian_operator_norm(p)) == pytest.approx(expected, rel=1e-13)
    # Of shares (1, e, e) the eigenvectors are (0, 1, −1) with e and (−2, 1, 1) with 3e.
    tiny = torch.tensor([1.0, 1e-250, 1e-250], dtype=torch.float64)
    assert float(jacobian_operator_norm(tiny)) == pytest.approx(3e-250, rel=1e-14)


def test_jacobian_norm_of_each_row_alone():
    p = torch.cat([softmax(scale * normal(5, 40, seed=7)) for scale in (1e-6, 1.0, 30.0)])
    alone = torch.stack([jacobian_operator_norm(row) for row in p])
    assert torch.equal(jacobian_operator_norm(p), alone)


def test_unusable_input():
    with pytest.raises(NumericsError, match="NaN"):
        softmax(torch.tensor([0.0, math.nan]))
    with pytest.raises(NumericsError, match=r"\+inf"):
        softmax(torch.tensor([0.0, math.inf]))
    with pytest.raises(UsageError, match="at least one key"):
        softmax(torch.zeros(2, 0))
    with pytest.raises(UsageError, match="sum to 1"):
        entropy(torch.tensor([0.5, 0.6]))
    with pytest.raises(UsageError, match="non-negative"):
        entropy(torch.tensor([1.5, -0.5]))
