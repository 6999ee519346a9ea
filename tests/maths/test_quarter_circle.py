"""The quarter circle, and exact moments of finite Gaussian matrices."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.errors import UsageError
from headscope.maths.random_matrices.marchenko_pastur import MarchenkoPastur
from headscope.maths.random_matrices.quarter_circle import QuarterCircle
from headscope.maths.random_matrices.wishart import energy_variance, mean_length, trace_moment

quick = settings(max_examples=25, deadline=None)
NODES, WEIGHTS = np.polynomial.legendre.leggauss(120)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def integral(low, high, f):
    """∫ f over [low, high] in the angle, which tames square roots at both ends."""
    theta = torch.from_numpy((NODES + 1) * math.pi / 2)
    x = (low + high) / 2 - (high - low) / 2 * theta.cos()
    return float((f(x) * theta.sin() * torch.from_numpy(WEIGHTS) * math.pi / 2 * (high - low) / 2).sum())


@quick
@given(radius=st.floats(1e-3, 1e3), power=st.floats(0, 6))
def test_density_cdf_and_moments_agree(radius, power):
    law = QuarterCircle(radius)
    found = integral(0, radius, lambda s: (s / radius) ** power * law.density(s)) * radius**power
    assert found == pytest.approx(law.moment(power), rel=1e-5)
    part = integral(0, 0.7 * radius, law.density)
    assert float(law.cdf(torch.tensor([0.7 * radius], dtype=torch.float64))) == pytest.approx(part, rel=1e-8)
    assert [law.moment(2.0 * k) for k in range(1, 5)] == pytest.approx(
        [catalan * (radius / 2) ** (2 * k) for k, catalan in enumerate((1, 2, 5, 14), 1)]
    )
    p = torch.tensor([0.01, 0.4, 0.9], dtype=torch.float64)
    torch.testing.assert_close(law.cdf(law.quantile(p)), p)


def test_outside_there_is_nothing():
    law = QuarterCircle(2.0)
    x = torch.tensor([-1.0, 2.5], dtype=torch.float64)
    assert law.density(x).tolist() == [0.0, 0.0]
    assert law.cdf(x).tolist() == [0.0, 1.0]


def test_it_is_the_square_marchenko_pastur_law():
    law, square = QuarterCircle.of_square_matrix(30, 0.2), MarchenkoPastur(30, 30, 0.2)
    s = torch.linspace(0.1, 4.8, 50, dtype=torch.float64)
    torch.testing.assert_close(law.density(s), square.singular_density(s))
    torch.testing.assert_close(law.cdf(s), square.cdf(s.square()))


def test_mean_of_the_quarter_circle():
    law = QuarterCircle.of_square_matrix(100, 0.04)
    assert law.mean == pytest.approx(8 / (3 * math.pi) * 2)
    assert law.moment(2.0) == pytest.approx(4)


@pytest.mark.parametrize("symmetric", [False, True])
def test_matrices_follow_the_quarter_circle(symmetric):
    n = 200
    matrix = normal(n, n)
    if symmetric:
        matrix = torch.triu(matrix) + torch.triu(matrix, 1).mT
    sigma = torch.linalg.svdvals(matrix).flip(0)
    steps = torch.arange(1, n + 1, dtype=torch.float64) / n
    assert float((QuarterCircle.of_square_matrix(n, 1.0).cdf(sigma) - steps).abs().max()) < 0.02


@pytest.mark.parametrize("shape", [(3, 3), (2, 5), (6, 1)])
def test_trace_moments_of_samples(shape):
    squares = torch.linalg.svdvals(normal(100_000, *shape) * 2**0.5).square()
    for power in (1, 2, 3):
        total = squares.pow(power).sum(-1)
        expected = trace_moment(*shape, power, 2.0)
        assert float(total.mean()) == pytest.approx(expected, abs=4 * float(total.std()) / 100_000**0.5)
    energy = (squares.sum(-1) - trace_moment(*shape, 1, 2.0)).square()
    assert float(energy.mean()) == pytest.approx(
        energy_variance(*shape, 2.0), abs=4 * float(energy.std()) / 100_000**0.5
    )


@quick
@given(rows=st.integers(1, 30))
def test_trace_moments_of_a_column(rows):
    assert trace_moment(rows, 1, 2) == pytest.approx(rows * (rows + 2))
    assert trace_moment(1, rows, 3) == pytest.approx(rows * (rows + 2) * (rows + 4))


@pytest.mark.parametrize("power", [1, 2, 3])
def test_trace_moments_approach_their_limit(power):
    rows, columns = 10**6, 3 * 10**6
    law = MarchenkoPastur(rows, columns)
    low, high = (edge**0.5 for edge in law.edges)
    limit = integral(low, high, lambda s: s ** (2 * power) * law.singular_density(s))
    assert trace_moment(rows, columns, power) / rows == pytest.approx(limit, rel=1e-5)


def test_mean_length():
    length = normal(200_000, 3).norm(dim=-1) * 2
    assert float(length.mean()) == pytest.approx(mean_length(3, 4.0), abs=4 * float(length.std()) / 200_000**0.5)
    assert mean_length(1000, 1 / 1000) == pytest.approx(1 - 1 / 4000, abs=1e-6)


def test_bad_input_is_refused():
    with pytest.raises(UsageError, match="radius"):
        QuarterCircle(0.0)
    with pytest.raises(UsageError, match="powers above"):
        QuarterCircle(1.0).moment(-1.0)
    with pytest.raises(UsageError, match="powers 1, 2 and 3"):
        trace_moment(3, 3, 4)
    with pytest.raises(UsageError, match="no random matrix"):
        energy_variance(3, 0)
