"""The trace of A^T B and what chance gives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.errors import NumericsError, UsageError
from headscope.maths.linear_algebra.alignment import (
    alignment,
    form_moments,
    haar_trace_variance,
    independent_trace_variance,
    largest_alignment,
    largest_alignment_of_left_bases,
    turned_overlap,
    turned_symmetric_share,
    turned_trace_variance,
)
from headscope.maths.random_matrices.haar import haar_frames, subspace_overlap

quick = settings(max_examples=25, deadline=None)
sizes = st.integers(1, 6)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def frames(count, n, size=None, seed=0):
    return haar_frames(count, n, size, torch.Generator().manual_seed(seed))


@quick
@given(rows=sizes, columns=sizes)
def test_alignment_sums_columns_and_rows(rows, columns):
    a, b = normal(2, rows, columns, seed=rows)
    columns_sum = sum(a[:, i] @ b[:, i] for i in range(columns))
    torch.testing.assert_close(alignment(a, b), torch.trace(a.mT @ b))
    torch.testing.assert_close(alignment(a, b), torch.as_tensor(columns_sum))
    torch.testing.assert_close(alignment(a, b), torch.trace(a @ b.mT))


def test_alignment_ignores_common_rotations():
    a, b = normal(2, 5, 4)
    u, v = frames(1, 5)[0], frames(1, 4, seed=1)[0]
    torch.testing.assert_close(alignment(u @ a @ v, u @ b @ v), alignment(a, b))


def test_trace_of_independent_matrices():
    a, b = normal(50_000, 4, 6) * 0.5, normal(50_000, 4, 6, seed=1) * 2
    squares = alignment(a, b).square()
    expected = independent_trace_variance(4, 6, 0.25, 4.0)
    assert float(squares.mean()) == pytest.approx(expected, abs=4 * float(squares.std()) / 50_000**0.5)
    assert independent_trace_variance(9, 9, 1 / 9, 1 / 9) == pytest.approx(1)


def haar_traces(sigma_a, sigma_b, rows, columns, count=40_000):
    rank = len(sigma_a)
    a = frames(count, rows, rank) * sigma_a @ frames(count, columns, rank, 1).mT
    b = frames(count, rows, rank, 2) * sigma_b @ frames(count, columns, rank, 3).mT
    return alignment(a, b)


@pytest.mark.parametrize("second", [(1.0, 2.0, 3.0), (3.0, 2.0, 1.0), (0.0, 0.0, 2.0)])
def test_trace_of_haar_bases(second):
    sigma_a, sigma_b = torch.tensor([4.0, 1.0, 0.5]), torch.tensor(second)
    trace = haar_traces(sigma_a.double(), sigma_b.double(), 5, 4)
    squares = trace.square()
    expected = float(haar_trace_variance(sigma_a, sigma_b, 5, 4))
    assert float(squares.mean()) == pytest.approx(expected, abs=4 * float(squares.std()) / len(squares) ** 0.5)
    assert float(trace.mean()) == pytest.approx(0, abs=4 * float(trace.std()) / len(trace) ** 0.5)


@quick
@given(seed=st.integers(0, 1000), n=st.integers(2, 6))
def test_no_bases_exceed_the_bounds(seed, n):
    a, b = normal(2, n, n, seed=seed)
    (u_a, d_a, v_a), d_b = torch.linalg.svd(a), torch.linalg.svdvals(b)
    top, left = largest_alignment(d_a, d_b), largest_alignment_of_left_bases(a, b)
    assert float(left) <= float(top) * (1 + 1e-12)
    turned = frames(20, n, seed=seed) @ b
    assert float(alignment(a.expand_as(turned), turned).max()) <= float(left) * (1 + 1e-12)
    torch.testing.assert_close(alignment(u_a * d_a @ v_a, u_a * d_b @ v_a), top)
    u, _, v = torch.linalg.svd(a @ b.mT)
    torch.testing.assert_close(alignment(a, u @ v @ b), left)


def test_three_quarters_for_random_matrices():
    n = 200
    a, b = normal(2, n, n)
    assert float(largest_alignment_of_left_bases(a, b)) / n**2 == pytest.approx(0.75, abs=0.01)


def test_bad_input_is_refused():
    with pytest.raises(UsageError, match="one shape"):
        alignment(normal(2, 3), normal(3, 2))
    with pytest.raises(NumericsError, match="NaN"):
        alignment(normal(2, 2) / 0 * 0, normal(2, 2))
    with pytest.raises(UsageError, match="singular values"):
        haar_trace_variance(torch.ones(4), torch.ones(3), 3, 5)
    with pytest.raises(UsageError, match="no matrix"):
        independent_trace_variance(0, 3, 1.0, 1.0)


def symmetric_share(a, b):
    return form_moments(a, b).symmetric_share


def near(samples, expected):
    """A mean over samples lies within four of its standard errors."""
    assert float(samples.mean()) == pytest.approx(float(expected), abs=4 * float(samples.std()) / len(samples) ** 0.5)


def turned(count=20_000, n=7, rank=3):
    """A fixed form, and its products with random rotations."""
    a, b = normal(n, rank, seed=3), normal(n, rank, seed=4) * torch.tensor([3.0, 1.0, 0.5], dtype=torch.float64)
    form = a @ b.mT
    return form, torch.linalg.svdvals(form)[:rank], frames(count, n, seed=5) @ form


def shares(forms):
    symmetric = (forms + forms.mT) / 2
    return symmetric.square().sum((-2, -1)) / forms.square().sum((-2, -1))


def purity_of(sigma):
    return sigma.pow(4).sum() / sigma.square().sum().square()


@quick
@given(n=sizes, d=sizes, scale=st.sampled_from([1e-60, 1.0, 1e60]))
def test_form_moments_are_those_of_singular_values(n, d, scale):
    a, b = normal(2, n, d, seed=10 * n + d) * scale
    sigma = torch.linalg.svdvals(a @ b.mT)
    found, zero = form_moments(a, b), form_moments(a, torch.zeros_like(b))
    torch.testing.assert_close((found.energy, found.purity), (sigma.square().sum(), purity_of(sigma / sigma[0])))
    assert (float(zero.energy), float(zero.purity)) == (0.0, 0.0)


def test_turned_traces_of_samples():
    _, sigma, forms = turned()
    traces = forms.diagonal(dim1=-2, dim2=-1).sum(-1)
    near(traces, 0.0)
    near(traces.square(), turned_trace_variance(sigma.square().sum(), 7))


def test_turned_trace_of_gaussian_factors():
    a, b = normal(20_000, 6, 3), normal(20_000, 6, 3, seed=1)
    variances = turned_trace_variance(form_moments(a, b).energy, 6)
    near(variances, independent_trace_variance(6, 3, 1.0, 1.0))


@quick
@given(n=st.integers(2, 8), d=st.integers(1, 9), scale=st.sampled_from([1e-120, 1.0, 1e120]))
def test_symmetric_share_of_the_dense_form(n, d, scale):
    a, b = normal(2, n, d, seed=10 * n + d)
    torch.testing.assert_close(symmetric_share(a * scale, b), shares(a @ b.mT))


def test_symmetric_share_at_its_ends():
    a = normal(6, 2)
    turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    g = normal(2, 2, seed=1)
    for sign in (1, -1):
        assert float(symmetric_share(a, sign * a)) == pytest.approx(1)
        assert float(symmetric_share(a @ g, sign * a @ torch.linalg.inv(g).mT)) == pytest.approx(1)
    assert float(symmetric_share(a, a @ turn)) == pytest.approx(0, abs=1e-12)
    assert float(symmetric_share(a, torch.zeros_like(a))) == 0.5


def test_turned_symmetric_share_of_samples():
    _, sigma, forms = turned()
    mean, variance = turned_symmetric_share(purity_of(sigma), 7)
    near(shares(forms), mean)
    near((shares(forms) - mean).square(), variance)
    with pytest.raises(UsageError, match="one dimension"):
        turned_symmetric_share(torch.ones(()), 1)


def test_trace_of_a_squared_rotation():
    """Share = 1/2 + Tr(O²)/2n; the law of Tr(O²) is known: mean 1, variance 2."""
    n = 6
    mean, variance = turned_symmetric_share(torch.tensor(1 / n), n)
    assert (mean - 0.5) * 2 * n == pytest.approx(1)
    assert float(variance) * (2 * n) ** 2 == pytest.approx(2)


def test_symmetric_share_of_gaussian_factors():
    a, b = normal(20_000, 5, 2), normal(20_000, 5, 2, seed=1)
    near(symmetric_share(a, b), 0.5 + 0.5 / 5)


def test_turned_overlap_of_samples():
    a, b = torch.tensor([3.0, 1.0, 0.2], dtype=torch.float64), torch.tensor([2.0, 0.5], dtype=torch.float64)
    q = frames(20_000, 6, seed=2)[:, :3, :2].square()
    overlaps = (a[:, None] * b * q).sum((-2, -1))
    mean, variance = turned_overlap(a, b, 6)
    near(overlaps, mean)
    near((overlaps - mean).square(), variance)
    with pytest.raises(UsageError, match="at most 2"):
        turned_overlap(a, b, 2)


def test_turned_overlap_of_projections():
    mean, variance = turned_overlap(torch.ones(3), torch.ones(2), 9)
    assert (float(mean), float(variance)) == pytest.approx(subspace_overlap(9, 3, 2))
