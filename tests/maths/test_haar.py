"""Uniform directions, pairs, bases and subspaces."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.errors import UsageError
from headscope.maths.random_matrices.haar import (
    haar_frames,
    largest_cosine_square,
    pairs_at_cosine,
    product_moments,
    subspace_overlap,
    uniform_directions,
)
from headscope.maths.random_matrices.tracy_widom import survival

quick = settings(max_examples=25, deadline=None)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def near(expected, samples, standard_errors=4.0):
    error = float(samples.std()) / len(samples) ** 0.5
    return float(samples.mean()) == pytest.approx(expected, abs=standard_errors * error + 1e-12)


def test_directions_are_uniform():
    n = 5
    x = uniform_directions(100_000, n, generator())
    torch.testing.assert_close(x.norm(dim=-1), torch.ones(100_000, dtype=torch.float64))
    assert near(0, x[:, 0])
    assert near(1 / n, x[:, 1].square())
    assert near(0, x[:, 0] * x[:, 2])
    assert near(3 / (n * (n + 2)), x[:, 3].pow(4))


@quick
@given(n=st.integers(2, 20), cosine=st.floats(-1, 1))
def test_pairs_have_their_cosine(n, cosine):
    x, y = pairs_at_cosine(10, n, cosine, generator())
    torch.testing.assert_close((x * y).sum(-1), torch.full((10,), cosine, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(y.norm(dim=-1), torch.ones(10, dtype=torch.float64))


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("cosine", [-1.0, 1.0])
def test_the_largest_cosines_are_one_direction_twice(n, cosine):
    x, y = pairs_at_cosine(10, n, cosine, generator())
    torch.testing.assert_close(y, cosine * x, rtol=0, atol=1e-15)


@pytest.mark.parametrize("cosine", [-1.0, 1.0])
def test_product_moments_of_one_direction_twice(cosine):
    """The moments of x² and of x_i x_j on the sphere."""
    assert product_moments(5, cosine) == pytest.approx((3 / 35, 1 / 35))


@quick
@given(n=st.integers(2, 50), cosine=st.floats(-1, 1))
def test_product_moments_sum_to_one(n, cosine):
    same, other = product_moments(n, cosine)
    assert n * same + n * (n - 1) * other == pytest.approx(1)


@pytest.mark.parametrize("cosine", [-0.6, 0.0, 0.95])
def test_product_moments_of_samples(cosine):
    x, y = pairs_at_cosine(200_000, 4, cosine, generator())
    same, other = product_moments(4, cosine)
    assert near(same, (x[:, 0] * y[:, 0]).square())
    assert near(other, (x[:, 0] * y[:, 1]).square())


@quick
@given(n=st.integers(1, 12), less=st.integers(0, 11))
def test_frames_are_orthonormal(n, less):
    q = haar_frames(3, n, max(1, n - less), generator())
    torch.testing.assert_close(q.mT @ q, torch.eye(q.shape[-1], dtype=torch.float64).expand(3, -1, -1))


def test_frames_are_uniform():
    n = 3
    q = haar_frames(100_000, n, generator=generator())
    assert near(0, q[:, 0, 0])
    assert near(0, torch.linalg.det(q))
    assert near(1 / n, q[:, 0, 0].square())
    assert near(0, q[:, 0, 0] * q[:, 1, 1])
    assert near(1 / (n * (n + 2)), q[:, 0, 0].square() * q[:, 0, 1].square())
    assert near((n + 1) / ((n - 1) * n * (n + 2)), q[:, 0, 0].square() * q[:, 1, 1].square())


@pytest.mark.parametrize("sizes", [(6, 2, 3), (5, 1, 1), (7, 5, 4)])
def test_overlap_of_random_subspaces(sizes):
    n, a, b = sizes
    overlap = (haar_frames(60_000, n, a, generator()).mT @ haar_frames(60_000, n, b, generator(1))).square().sum((1, 2))
    mean, variance = subspace_overlap(n, a, b)
    assert near(mean, overlap)
    assert near(variance, (overlap - mean).square())


def test_overlap_of_a_direction():
    mean, variance = subspace_overlap(5, 1, 1)
    assert mean == pytest.approx(1 / 5)
    assert variance == pytest.approx(3 / 35 - 1 / 25)
    assert subspace_overlap(5, 5, 3) == (3.0, 0.0)
    assert subspace_overlap(1, 1, 1) == (1.0, 0.0)


def test_impossible_requests_are_refused():
    with pytest.raises(UsageError, match="at least 1"):
        uniform_directions(0, 3)
    with pytest.raises(UsageError, match="cosine"):
        pairs_at_cosine(3, 4, 1.5)
    with pytest.raises(UsageError, match="orthonormal"):
        haar_frames(2, 3, 4)
    with pytest.raises(UsageError, match="subspaces"):
        subspace_overlap(3, 4, 1)
    with pytest.raises(UsageError, match="pair"):
        product_moments(1, 0.5)


@pytest.mark.parametrize(("n", "a", "b"), [(24, 5, 5), (64, 16, 8), (20, 1, 3)])
def test_largest_cosine_of_random_subspaces(n, a, b):
    """Upper half of the law within 0.03 of samples: 4000 of them leave 0.008."""
    p, q = haar_frames(4000, n, a, generator(1)), haar_frames(4000, n, b, generator(2))
    square = torch.linalg.svdvals(p.mT @ q)[:, 0].square()
    centre, scale = largest_cosine_square(n, a, b)
    chances = survival(((square / (1 - square)).log() - centre) / scale)
    for level in (0.05, 0.2, 0.5):
        assert float((chances < level).double().mean()) == pytest.approx(level, abs=0.03)


def test_subspaces_that_must_meet_have_no_law():
    with pytest.raises(UsageError, match="share a direction"):
        largest_cosine_square(8, 5, 4)
