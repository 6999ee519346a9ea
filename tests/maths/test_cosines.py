"""Cosines over all pairs, and those of random directions."""

from math import sqrt

import pytest
import torch

from headscope.errors import NumericsError
from headscope.maths.geometry.cosines import Directions, cosine_density, largest_cosine, null_deviations
from headscope.maths.geometry.sphere import uniform_on_sphere


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_moments_are_those_of_all_pairs(dtype, monkeypatch):
    monkeypatch.setattr("headscope.maths.geometry.cosines.ROWS", 7)
    x, y = (normal(23, 5) + 1).to(dtype), normal(9, 5, seed=1).to(dtype)
    x[4] = 0
    u, v = (torch.nn.functional.normalize(a.double(), dim=1) for a in (torch.cat((x[:4], x[5:])), y))
    found, others = Directions.of(x), Directions.of(y)
    cosines = torch.stack([u[i] @ u[j] for i in range(22) for j in range(i)])
    assert found.count == 22
    assert found.pairs == len(cosines)
    assert torch.allclose(found.gram, u.mT @ u)
    assert torch.allclose(found.total, u.sum(0))
    assert found.mean == pytest.approx(float(cosines.mean()), abs=1e-12)
    assert found.mean_square == pytest.approx(float(cosines.square().mean()), abs=1e-12)
    crossed = u @ v.mT
    assert found.with_others(others) == pytest.approx(
        (float(crossed.mean()), float(crossed.square().mean())), abs=1e-12
    )
    seen = Directions.of(x, x.double().mean(0))
    around = torch.nn.functional.normalize(x.double() - x.double().mean(0), dim=1)
    every = around @ around.mT
    assert seen.mean_square == pytest.approx(float((every.square().sum() - 23) / (23 * 22)), abs=1e-12)


def test_one_vector_has_no_pairs():
    with pytest.raises(NumericsError, match="needs 2 vectors"):
        _ = Directions.of(normal(1, 4)).mean


def test_null_deviations():
    d, n, draws = 6, 12, 4000
    u = uniform_on_sphere(draws * n, d, generator=torch.Generator().manual_seed(0)).reshape(draws, n, d)
    found = [Directions.of(one) for one in u]
    of_mean, of_square = null_deviations(d, n * (n - 1) // 2)
    assert torch.tensor([one.mean for one in found]).std() == pytest.approx(of_mean, rel=0.05)
    assert torch.tensor([one.mean_square for one in found]).std() == pytest.approx(of_square, rel=0.05)
    assert torch.tensor([one.mean_square for one in found]).mean() == pytest.approx(1 / d, rel=0.01)


@pytest.mark.parametrize("d", [4, 32, 768])
def test_density_of_a_cosine(d):
    t = torch.linspace(-1, 1, 200_001, dtype=torch.float64)
    f = cosine_density(t, d)
    assert float(torch.trapezoid(f, t)) == pytest.approx(1, abs=1e-6)
    assert float(torch.trapezoid(f * t * t, t)) == pytest.approx(1 / d, rel=1e-6)


def test_largest_of_many_cosines():
    d, count, draws = 8, 50, 4000
    u = uniform_on_sphere(draws * count, d, generator=torch.Generator().manual_seed(1)).reshape(draws, count, d)
    above = float((u[..., 0].max(1).values > largest_cosine(d, count)).double().mean())
    assert above == pytest.approx(0.5, abs=4 * sqrt(0.25 / draws))
