"""Laws of `headscope.maths.gaussians.moments`."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.errors import NumericsError, UsageError
from headscope.maths.gaussians.moments import Moments

quick = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 10_000)
FLOAT64 = 1e-12


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_same(a, b, tolerance=FLOAT64):
    assert a.count == b.count
    for name in ("mean", "scatter", "cubic", "quartic"):
        x, y = getattr(a, name), getattr(b, name)
        scale = float(y.abs().max()) + float(a.quartic.abs().max()) ** 0.75 * (name == "cubic")
        assert float((x - y).abs().max()) <= tolerance * max(scale, 1e-300), name


def direct(x):
    c = x - x.mean(-2, keepdim=True)
    squares = c.square().sum(-1)
    return Moments(x.shape[-2], x.mean(-2), c.mT @ c, (squares.unsqueeze(-1) * c).sum(-2), squares.square().sum(-1))


@quick
@given(seed=seeds, d=st.integers(1, 5), pieces=st.lists(st.integers(0, 7), min_size=1, max_size=6))
def test_moments_of_any_split(seed, d, pieces):
    x = normal(2, sum(pieces), d, seed=seed) * 3 + normal(d, seed=seed + 1)
    if not sum(pieces):
        assert Moments.of(x).count == 0
        return
    parts = [Moments.of(piece) for piece in x.split(pieces, dim=-2)]
    forward, backward = Moments.empty(d, (2,)), Moments.empty(d, (2,))
    for part in parts:
        forward = forward.merge(part)
        backward = part.merge(backward)
    assert_same(forward, direct(x), 1e-10)
    assert_same(backward, direct(x), 1e-10)


def test_moments_of_many_rows():
    x = normal(10_000, 3)
    assert_same(Moments.of(x), direct(x), 1e-10)


def test_moments_far_from_the_origin():
    """A spread of 1 about a mean of 1e8: raw sums of squares would keep no digit of it."""
    x = (normal(4, 500, 3) * 2**10).round() / 2**10  # so that adding 2^27 loses nothing
    near = Moments.of(x)
    merged = Moments.of(x[:, :100] + 2**27).merge(Moments.of(x[:, 100:] + 2**27))
    torch.testing.assert_close(merged.covariance(), near.covariance(), rtol=1e-7, atol=1e-8)
    raw = (
        (x + 2**27).mT @ (x + 2**27) - 500 * (x + 2**27).mean(1).unsqueeze(-1) * (x + 2**27).mean(1).unsqueeze(-2)
    ) / 499
    assert float((raw - near.covariance()).abs().max()) > 0.01


def test_merging_nothing():
    found = Moments.of(normal(5, 2))
    assert found.merge(Moments.empty(2)) is found
    assert Moments.empty(2).merge(found) is found


def test_covariance_equals_torch():
    x = normal(20, 4)
    torch.testing.assert_close(Moments.of(x).covariance(), torch.cov(x.mT))
    torch.testing.assert_close(Moments.of(x).covariance(ddof=0), torch.cov(x.mT, correction=0))
    short = normal(20, 4).float()
    assert Moments.of(short).covariance().dtype == torch.float64


@quick
@given(seed=seeds, samples=st.integers(2, 6))
def test_rank_of_few_samples(seed, samples):
    covariance = Moments.of(normal(samples, 8, seed=seed)).covariance()
    assert bool((covariance == covariance.mT).all())
    assert int(torch.linalg.matrix_rank(covariance, hermitian=True)) == samples - 1


def test_clear_errors():
    with pytest.raises(NumericsError, match="at least 2 samples, got 1"):
        Moments.of(normal(1, 3)).covariance()
    with pytest.raises(NumericsError, match="NaN or Inf"):
        Moments.of(torch.tensor([[1.0, float("nan")]]))
    with pytest.raises(UsageError, match="different things"):
        Moments.of(normal(4, 3)).merge(Moments.of(normal(4, 2)))
