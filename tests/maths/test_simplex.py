"""Laws of `headscope.maths.linear_algebra.simplex`."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize

from headscope.errors import NumericsError, UsageError
from headscope.maths.linear_algebra.simplex import nearest_on_simplex, nearest_on_simplex_l1

seeds = st.integers(0, 10_000)
quick = settings(max_examples=40, deadline=None)


def rows(*shape, seed=0, size=1.0):
    return size * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def some_allowed(n, seed):
    allowed = torch.rand(n, generator=torch.Generator().manual_seed(seed)) < 0.6
    allowed[seed % n] = True
    return allowed


def points_of_the_simplex(count, n, seed):
    draws = -torch.rand(count, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).log()
    return draws / draws.sum(-1, keepdim=True)


@quick
@given(n=st.integers(1, 12), seed=seeds, size=st.sampled_from([1e-8, 0.3, 1.0, 50.0]))
def test_no_point_of_the_simplex_is_nearer(n, seed, size):
    a, allowed = rows(3, n, seed=seed, size=size), some_allowed(n, seed)
    p = nearest_on_simplex(a, allowed)
    assert bool((p >= 0).all())
    assert bool((p[:, ~allowed] == 0).all())
    torch.testing.assert_close(p.sum(-1), torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-12)
    others = points_of_the_simplex(200, n, seed + 1) * allowed
    others = others / others.sum(-1, keepdim=True)
    # The obtuse angle characterises the projection onto a convex set.
    angles = ((a - p)[:, None] * (others - p[:, None])).sum(-1)
    assert float(angles.max()) <= 1e-9 * max(1.0, size)


def test_simplex_projection_equals_a_solver():
    a = rows(7, seed=3)
    best = minimize(
        lambda p: float(((torch.tensor(p) - a) ** 2).sum()), [1 / 7] * 7, bounds=[(0, None)] * 7,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1}, options={"ftol": 1e-14, "maxiter": 500},
    ).x  # fmt: skip
    torch.testing.assert_close(nearest_on_simplex(a), torch.tensor(best), rtol=0, atol=1e-6)


@quick
@given(n=st.integers(1, 10), seed=seeds)
def test_simplex_points_stay(n, seed):
    p = points_of_the_simplex(4, n, seed)
    torch.testing.assert_close(nearest_on_simplex(p), p, rtol=0, atol=1e-12)
    torch.testing.assert_close(nearest_on_simplex_l1(p), p, rtol=0, atol=1e-12)


@quick
@given(n=st.integers(1, 10), seed=seeds)
def test_simplex_projection_is_non_expansive(n, seed):
    a, b = rows(5, n, seed=seed), rows(5, n, seed=seed + 1)
    moved = (nearest_on_simplex(a) - nearest_on_simplex(b)).norm(dim=-1)
    assert bool((moved <= (a - b).norm(dim=-1) + 1e-12).all())


@quick
@given(n=st.integers(1, 7), seed=seeds, size=st.sampled_from([0.1, 1.0]))
def test_l1_distance_is_the_least(n, seed, size):
    """Against a linear programme: minimise Σ t with −t ≤ p − a ≤ t."""
    a, allowed = rows(n, seed=seed, size=size), some_allowed(n, seed)
    eye = torch.eye(n).numpy()
    program = linprog(
        [0] * n + [1] * n, A_ub=np.block([[eye, -eye], [-eye, -eye]]), b_ub=torch.cat([a, -a]).numpy(),
        A_eq=[[1] * n + [0] * n], b_eq=[1],
        bounds=[(0, None if ok else 0) for ok in allowed.tolist()] + [(0, None)] * n,
    )  # fmt: skip
    positive = a.clamp_min(0.0)
    missing = (1 - (positive * allowed).sum()).abs()
    found = float(missing + (-a).clamp_min(0.0).sum() + (positive * ~allowed).sum())
    assert found == pytest.approx(program.fun, abs=1e-9)
    p = nearest_on_simplex_l1(a, allowed)
    assert float((p - a).abs().sum()) == pytest.approx(found, abs=1e-12)
    assert float(p.sum()) == pytest.approx(1, abs=1e-12)


def test_l1_nearest_row_is_not_unique():
    a = torch.tensor([0.2, 0.3], dtype=torch.float64)
    candidates = torch.tensor([[0.4, 0.6], [0.7, 0.3], [0.2, 0.8]], dtype=torch.float64)
    assert (candidates - a).abs().sum(-1).tolist() == pytest.approx([0.5] * 3)
    assert float((nearest_on_simplex_l1(a) - a).abs().sum()) == pytest.approx(0.5)


def test_normalising_is_not_the_euclidean_projection():
    a = torch.tensor([0.2, 0.3], dtype=torch.float64)
    assert nearest_on_simplex_l1(a).tolist() == pytest.approx([0.4, 0.6])
    assert nearest_on_simplex(a).tolist() == pytest.approx([0.45, 0.55])


def test_nothing_positive_becomes_uniform():
    assert nearest_on_simplex_l1(torch.tensor([-1.0, 0.0, -2.0])).tolist() == pytest.approx([1 / 3] * 3)


def test_unusable_rows_are_refused():
    with pytest.raises(NumericsError, match="NaN or Inf"):
        nearest_on_simplex(torch.tensor([1.0, float("nan")]))
    with pytest.raises(UsageError, match="allows no entry"):
        nearest_on_simplex_l1(torch.ones(2, 3), torch.tensor([[True] * 3, [False] * 3]))
