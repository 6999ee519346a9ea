"""The Tracy–Widom law against published values and against Gaussian matrices."""

import numpy as np
import pytest
import torch

from headscope.errors import NumericsError, UsageError
from headscope.maths.random_matrices import tracy_widom
from headscope.maths.random_matrices.marchenko_pastur import BEYOND_EDGE, TRACY_WIDOM_MEAN, TRACY_WIDOM_SD
from headscope.maths.random_matrices.tracy_widom import centre_and_scale, survival

# Johnstone (2001), table 1 and its sources: F₁ at these points.
PUBLISHED = {
    0.01: -3.8954, 0.05: -3.1804, 0.10: -2.7824, 0.30: -1.9104, 0.50: -1.2686,
    0.70: -0.5923, 0.90: 0.4501, 0.95: 0.9793, 0.99: 2.0234,
}  # fmt: skip


def tensor(values):
    return torch.tensor(list(values), dtype=torch.float64)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_published_quantiles():
    points = tensor(PUBLISHED.values())
    # The points have four decimals: half a unit of the last one, to both sides, holds the probability.
    low, high = (1 - survival(points + shift) for shift in (-6e-5, 6e-5))
    assert all(a < p < b for a, p, b in zip(low.tolist(), PUBLISHED, high.tolist(), strict=True))
    assert 1 - float(survival(tensor([0.0]))) == pytest.approx(0.83190806620295, abs=1e-13)
    assert float(survival(tensor([0.0]))) == pytest.approx(BEYOND_EDGE, abs=1e-4)


def test_published_moments():
    """Bornemann (2010), table 10; by parts, from the distribution function alone."""
    nodes, weights = np.polynomial.legendre.leggauss(60)
    below, above = torch.from_numpy((nodes - 1) * 5), torch.from_numpy((nodes + 1) * 8)
    left, right = (1 - survival(below)) * torch.from_numpy(weights * 5), survival(above) * torch.from_numpy(weights * 8)
    mean = float(right.sum() - left.sum())
    second = float((2 * above * right).sum() - (2 * below * left).sum())
    assert mean == pytest.approx(-1.2065335745820, abs=1e-11)
    assert second - mean**2 == pytest.approx(1.607781034581, abs=1e-10)
    assert mean == pytest.approx(TRACY_WIDOM_MEAN, abs=1e-7)
    assert (second - mean**2) ** 0.5 == pytest.approx(TRACY_WIDOM_SD, abs=1e-7)


def test_survival_is_a_survival_function():
    s = torch.linspace(-9, 14, 47, dtype=torch.float64)
    found = survival(s)
    assert bool((found.diff() <= 0).all())
    assert survival(tensor([-50.0, 50.0])).tolist() == [1.0, 0.0]
    # The far tail falls as exp(−2/3 s^1.5) / (4√π s^1.5).
    far = tensor([12.0])
    assert float(survival(far)) == pytest.approx(
        float((-2 / 3 * far**1.5).exp() / (4 * torch.pi**0.5 * far**1.5)), rel=0.1
    )


def test_more_nodes_change_nothing():
    s = np.array([-7.0, -3.0, 0.0, 4.0, 10.0])
    few, many = tracy_widom._survival(s), tracy_widom._survival(s, 130)
    np.testing.assert_allclose(few, many, rtol=1e-11, atol=1e-13)


def test_largest_value_of_samples():
    draws = 20_000
    centre, scale = centre_and_scale(10, 20, 2.0)
    largest = torch.linalg.matrix_norm(normal(draws, 10, 20) * 2**0.5, ord=2).square()
    for probability in (0.5, 0.9, 0.95, 0.99):
        share = float((largest <= centre + scale * PUBLISHED[probability]).double().mean())
        assert share == pytest.approx(probability, abs=0.015 + 4 * (probability * (1 - probability) / draws) ** 0.5)


def test_scale_of_large_squares():
    n = 10**8
    centre, scale = centre_and_scale(n, n, 1 / n)
    assert centre == pytest.approx(4)
    assert scale == pytest.approx(2 ** (4 / 3) * n ** (-2 / 3))


def test_p_values_of_random_matrices_are_uniform():
    largest = torch.linalg.matrix_norm(normal(600, 12, 30), ord=2).square()
    centre, scale = centre_and_scale(12, 30)
    chance = survival((largest - centre) / scale)
    for level in (0.1, 0.5):
        assert float((chance < level).double().mean()) == pytest.approx(level, abs=0.07)


def test_p_value_of_a_planted_direction():
    matrix = normal(20, 50)
    matrix[3, 4] += 25.0
    largest = torch.linalg.matrix_norm(matrix, ord=2).square()
    centre, scale = centre_and_scale(20, 50)
    assert float(survival((largest - centre) / scale)) < 1e-12


def test_bad_input_is_refused():
    with pytest.raises(NumericsError, match="NaN"):
        survival(tensor([float("nan")]))
    with pytest.raises(UsageError, match="no random matrix"):
        centre_and_scale(0, 3)
