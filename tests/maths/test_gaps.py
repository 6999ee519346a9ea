"""Gaps between singular values."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.errors import NumericsError, UsageError
from headscope.maths.random_matrices.singular_gaps import (
    gaps,
    rotation_bound,
    smallest_gap,
    smallest_gap_mean,
)

quick = settings(max_examples=25, deadline=None)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_gaps_of_a_known_spectrum():
    sigma = torch.tensor([1.0, 4.0, 3.5])
    assert gaps(sigma).tolist() == [0.5, 2.5]
    assert float(smallest_gap(sigma)) == 0.5


@quick
@given(n=st.integers(2, 3000), deviation=st.floats(1e-3, 1e3))
def test_smallest_gap_of_squares(n, deviation):
    assert smallest_gap_mean(n, n, deviation**2) == pytest.approx(math.sqrt(math.pi) * deviation / n, rel=1e-6)


@pytest.mark.parametrize("shape", [(24, 24), (24, 40), (60, 20)])
def test_smallest_gap_of_samples(shape):
    found = smallest_gap(torch.linalg.svdvals(normal(4000, *shape)))
    mean = smallest_gap_mean(*shape)
    # The law is a limit: three percent at this size.
    assert float(found.mean()) == pytest.approx(mean, rel=0.03 + 4 * float(found.std() / found.mean()) / 4000**0.5)
    share = float((found > mean).double().mean())
    # A Rayleigh variable exceeds its mean with this chance.
    assert share == pytest.approx(math.exp(-math.pi / 4), abs=0.045)


@quick
@given(seed=st.integers(0, 500), n=st.integers(2, 6), more=st.integers(0, 2), size=st.floats(1e-6, 0.3))
def test_no_rotation_exceeds_the_bound(seed, n, more, size):
    matrix, error = normal(2, n, n + more, seed=seed)
    error = error / torch.linalg.matrix_norm(error, ord=2) * size
    (u, d, v), (u_2, _, v_2) = (torch.linalg.svd(m, full_matrices=False) for m in (matrix, matrix + error))
    cosine = ((u * u_2).sum(0) + (v * v_2).sum(1)).abs() / 2
    sine = (1 - cosine.square()).clamp_min(0.0).sqrt()
    bound = rotation_bound(d, size, square=more == 0)
    assert bool((sine <= bound * (1 + 1e-6) + 1e-7).all())


def test_bad_input_is_refused():
    with pytest.raises(UsageError, match="two singular values"):
        gaps(torch.ones(1))
    with pytest.raises(NumericsError, match="NaN"):
        gaps(torch.tensor([1.0, float("nan")]))
    with pytest.raises(UsageError, match="no two singular values"):
        smallest_gap_mean(1, 5)
    with pytest.raises(UsageError, match="not negative"):
        rotation_bound(torch.ones(2), -1.0, square=True)
