"""Laws and known answers of `headscope.maths.linear_algebra.spectrum`."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.errors import NumericsError
from headscope.maths.linear_algebra.spectrum import (
    components_for,
    effective_rank,
    energy_beyond,
    form_singular_values,
    participation_ratio,
    singular_values,
    stable_rank,
    triangular_factor,
)

# √ε of float64, relative to the largest: what a Gram matrix keeps of the smallest singular values.
GRAM = 3e-8
# Plain float64 algorithms, relative to the largest, at sizes up to 100.
FLOAT64 = 1e-13

sizes = st.integers(1, 12)
seeds = st.integers(0, 10_000)
quick = settings(max_examples=40, deadline=None)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def rotation(n, seed):
    return torch.linalg.qr(normal(n, n, seed=seed)).Q


def assert_same(found, expected, tolerance):
    assert found.dtype == torch.float64
    assert found.shape == expected.shape
    scale = expected.abs().amax(-1, keepdim=True).clamp_min(1e-300)
    assert bool(((found - expected).abs() <= tolerance * scale).all()), (found, expected)


@quick
@given(rows=sizes, columns=sizes, batch=st.integers(1, 3), seed=seeds)
def test_singular_values_equal_svd(rows, columns, batch, seed):
    w = normal(batch, rows, columns, seed=seed)
    assert_same(singular_values(w), torch.linalg.svdvals(w), GRAM)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_singular_values_of_short_floats(dtype):
    w = normal(40, 30, dtype=dtype)
    assert_same(singular_values(w), torch.linalg.svdvals(w.double()), GRAM)


@quick
@given(exponent=st.sampled_from([-150, -30, 0, 30, 150]), seed=seeds)
def test_singular_values_scale(exponent, seed):
    w = normal(7, 5, seed=seed)
    assert_same(singular_values(w * 10.0**exponent) / 10.0**exponent, singular_values(w), 1e-12)


@quick
@given(rows=sizes, columns=sizes, seed=seeds)
def test_singular_values_ignore_rotations(rows, columns, seed):
    w = normal(rows, columns, seed=seed)
    turned = rotation(rows, seed + 1) @ w @ rotation(columns, seed + 2)
    assert_same(singular_values(turned), singular_values(w), GRAM)


@quick
@given(rows=sizes, columns=sizes, seed=seeds)
def test_singular_values_of_the_transpose(rows, columns, seed):
    w = normal(rows, columns, seed=seed)
    assert_same(singular_values(w.mT), singular_values(w), GRAM)


def test_singular_values_known():
    assert_same(singular_values(torch.eye(6)), torch.ones(6, dtype=torch.float64), FLOAT64)
    assert_same(singular_values(torch.zeros(3, 5)), torch.zeros(3, dtype=torch.float64), FLOAT64)
    assert_same(singular_values(torch.full((2, 8), 3.0))[:1], torch.tensor([12.0]).double(), FLOAT64)
    assert_same(singular_values(torch.tensor([[3.0, 4.0]])), torch.tensor([5.0]).double(), FLOAT64)
    assert_same(singular_values(torch.tensor([[-2.0]])), torch.tensor([2.0]).double(), FLOAT64)


def test_singular_values_of_many_blocks():
    """More rows, and more columns, than are taken at a time."""
    for w in (normal(2500, 6), normal(2, 300, 320)):
        assert_same(singular_values(w), torch.linalg.svdvals(w), GRAM)


def test_more_accurate_than_float32_svdvals():
    """At condition 1e5 the Gram matrix in float64 beats an SVD in float32."""
    sigma = torch.logspace(0, -5, 64, dtype=torch.float64)
    w = (rotation(64, 1) @ torch.diag(sigma) @ rotation(64, 2)).float()
    exact = torch.linalg.svdvals(w.double())
    ours = ((singular_values(w) - exact) / exact).abs().max()
    assert ours < 1e-6 < ((torch.linalg.svdvals(w) - exact) / exact).abs().max()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_is_refused(bad):
    w = torch.ones(3, 4)
    w[1, 2] = bad
    with pytest.raises(NumericsError, match="NaN or Inf"):
        singular_values(w)
    with pytest.raises(NumericsError, match="NaN or Inf"):
        form_singular_values(w, torch.ones(5, 4))


@quick
@given(rows=sizes, d=sizes, seed=seeds)
def test_triangular_factor_keeps_the_gram_matrix(rows, d, seed):
    a = normal(rows, d, seed=seed)
    r = triangular_factor(a)
    assert r.shape == (min(rows, d), d)
    torch.testing.assert_close(r.mT @ r, a.mT @ a, rtol=0, atol=1e-12)


@quick
@given(rows=sizes, d=sizes, columns=sizes, seed=seeds)
def test_form_equals_the_dense_product(rows, d, columns, seed):
    a, b = normal(2, rows, d, seed=seed), normal(2, columns, d, seed=seed + 1)
    dense = torch.linalg.svdvals(a @ b.mT)[..., : min(rows, d, columns)]
    assert_same(form_singular_values(a, b), dense, 1e-12)


@quick
@given(seed=seeds)
def test_form_ignores_the_inner_basis(seed):
    a, b = normal(9, 4, seed=seed), normal(7, 4, seed=seed + 1)
    g = rotation(4, seed) @ torch.diag(torch.tensor([0.1, 1.0, 3.0, 10.0], dtype=torch.float64))
    assert_same(form_singular_values(a @ g, b @ torch.linalg.inv(g).mT), form_singular_values(a, b), 1e-11)


@quick
@given(exponent=st.sampled_from([-150, -30, 30, 150]), seed=seeds)
def test_form_scales(exponent, seed):
    a, b = normal(9, 4, seed=seed), normal(7, 4, seed=seed + 1)
    scaled = form_singular_values(a * 10.0**exponent, b * 10.0 ** (-exponent))
    assert_same(scaled, form_singular_values(a, b), 1e-12)


def test_form_of_zero():
    assert form_singular_values(torch.zeros(4, 2), torch.ones(3, 2)).tolist() == [0.0, 0.0]


@quick
@given(n=st.integers(1, 30), seed=seeds, spread=st.floats(0, 30))
def test_ranks_are_ordered(n, seed, spread):
    sigma = (spread * normal(n, seed=seed)).exp().sort(descending=True).values
    ranks = [float(f(sigma)) for f in (stable_rank, participation_ratio, effective_rank)]
    assert 1 - 1e-9 <= ranks[0] <= ranks[1] * (1 + 1e-9)
    assert ranks[1] <= ranks[2] * (1 + 1e-9) <= n * (1 + 2e-9)


@quick
@given(equal=st.integers(1, 9), zeros=st.integers(0, 9), size=st.sampled_from([1e-200, 1.0, 1e200]))
def test_ranks_of_a_flat_spectrum(equal, zeros, size):
    sigma = torch.tensor([size] * equal + [0.0] * zeros, dtype=torch.float64)
    for rank in (stable_rank, participation_ratio, effective_rank):
        assert float(rank(sigma)) == pytest.approx(equal, rel=1e-12)


@quick
@given(seed=seeds, size=st.sampled_from([1e-180, 1e-3, 1e180]))
def test_ranks_ignore_scale(seed, size):
    sigma = normal(8, seed=seed).abs().sort(descending=True).values
    for rank in (stable_rank, participation_ratio, effective_rank):
        assert float(rank(sigma * size)) == pytest.approx(float(rank(sigma)), rel=1e-12)


def test_ranks_of_zero():
    for rank in (stable_rank, participation_ratio, effective_rank):
        assert rank(torch.zeros(2, 5, dtype=torch.float64)).tolist() == [0.0, 0.0]


def test_effective_rank_known():
    """Two directions with energies 3 : 1 have entropy ln 4 − (3/4) ln 3."""
    sigma = torch.tensor([3.0**0.5, 1.0], dtype=torch.float64)
    assert float(effective_rank(sigma)) == pytest.approx(4 / 3**0.75, rel=1e-12)
    assert float(stable_rank(sigma)) == pytest.approx(4 / 3, rel=1e-12)
    assert float(participation_ratio(sigma)) == pytest.approx(16 / 10, rel=1e-12)


def test_components_of_a_flat_spectrum():
    for rank in (1, 7, 10, 100):
        flat = torch.cat((torch.full((rank,), 3.0), torch.zeros(5)))
        for power in (1, 2):
            assert float(components_for(flat, 0.9, power=power)) == math.ceil(round(0.9 * rank, 9))
    assert float(components_for(torch.zeros(4), 0.9)) == 0


def test_components_are_ordered():
    sigma = torch.linalg.svdvals(torch.randn(5, 30, 20, generator=torch.Generator().manual_seed(3)))
    some, most = (components_for(sigma, share) for share in (0.5, 0.9))
    assert bool((some < most).all())
    assert bool((components_for(sigma, 0.9, power=1) >= most).all())
    energy = sigma.double().square()
    few = int(most[0])
    assert float(energy[0, :few].sum() / energy[0].sum()) >= 0.9 > float(energy[0, : few - 1].sum() / energy[0].sum())


def test_energy_beyond_is_what_truncation_misses():
    w = torch.randn(12, 9, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    u, sigma, v = torch.linalg.svd(w, full_matrices=False)
    near = u[:, :3] @ torch.diag(sigma[:3]) @ v[:3]
    assert float(energy_beyond(sigma, 3)) == pytest.approx(float((w - near).norm() / w.norm()) ** 2)
    assert float(energy_beyond(torch.zeros(4), 2)) == 0
