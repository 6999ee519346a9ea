"""Laws of `headscope.maths.linear_algebra.projections` and `headscope.maths.linear_algebra.supports`."""

import os
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.errors import NumericsError, UsageError
from headscope.maths.linear_algebra.projections import (
    distance,
    nearest_band,
    nearest_band_and_entries,
    nearest_blocks,
    nearest_equal_rows,
    nearest_low_rank,
    nearest_on_support,
    nearest_stripes,
)
from headscope.maths.linear_algebra.supports import band, blocks, stripes

NORMS = ("l1", "frobenius")
seeds = st.integers(0, 10_000)
quick = settings(max_examples=15, deadline=None)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def attention(*shape, seed=0):
    return (2 * normal(*shape, seed=seed)).softmax(-1)


@pytest.mark.parametrize(("n", "width"), [(1, 0), (5, 0), (5, 2), (9, 8)])
def test_band_size(n, width):
    assert int(band(n, width).sum()) == n * (2 * width + 1) - width * (width + 1)
    assert torch.equal(band(n, 0), torch.eye(n, dtype=torch.bool))
    assert int(band(n, n, dilation=2)[0].sum()) == (n + 1) // 2


def test_block_size():
    assert int(blocks([2, 3, 1]).sum()) == 14
    assert torch.equal(blocks([1, 1]), band(2, 0))


def test_stripes_are_a_left_ideal():
    places, any_matrix = stripes(5, [0, 3]), normal(5, 5)
    member = normal(5, 5, seed=1) * places
    assert bool(((any_matrix @ member)[~places] == 0).all())
    assert float((member @ any_matrix)[~places].abs().max()) > 0.1


def test_parallelogram_law():
    a, b = normal(4, 4), normal(4, 4, seed=1)
    zero = torch.zeros(4, 4)
    for norm, holds in (("frobenius", True), ("l1", False)):
        size = [float(distance(x, zero, norm)) for x in (a + b, a - b, a, b)]
        gap = size[0] ** 2 + size[1] ** 2 - 2 * size[2] ** 2 - 2 * size[3] ** 2
        assert (abs(gap) < 1e-9) == holds


@pytest.mark.parametrize("norm", NORMS)
def test_on_a_support(norm):
    a, b = normal(2, 6, 6), normal(2, 6, 6, seed=1)
    for near in (lambda x: nearest_band(x, 1, norm), lambda x: nearest_blocks(x, [2, 4], norm)):
        torch.testing.assert_close(near(near(a)), near(a), rtol=0, atol=0)
        torch.testing.assert_close(near(2 * a - b), 2 * near(a) - near(b), rtol=0, atol=1e-14)
    assert torch.equal(nearest_band(a, 1, "l1"), nearest_band(a, 1, "frobenius"))
    assert torch.equal(nearest_band(a, 0), a * torch.eye(6))
    assert torch.equal(nearest_band(a, 5), a)


@quick
@given(seed=seeds, norm=st.sampled_from(NORMS), stochastic=st.booleans())
def test_no_matrix_of_the_kind_is_nearer(seed, norm, stochastic):
    a, places = normal(6, 6, seed=seed), band(6, 1) | stripes(6, [seed % 6])
    best = nearest_on_support(a, places, norm, stochastic=stochastic)
    others = (best + 0.3 * normal(100, 6, 6, seed=seed + 1)) * places
    if stochastic:
        others = others.abs() / others.abs().sum(-1, keepdim=True)
        assert best.sum(-1).tolist() == pytest.approx([1.0] * 6)
    assert float(distance(a, best, norm)) <= float(distance(a.expand_as(others), others, norm).min()) + 1e-12
    assert bool((best[~places] == 0).all())


def every_choice(n, width, entries):
    outside = [tuple(place) for place in (~band(n, width)).nonzero().tolist()]
    for places in combinations(outside, entries):
        support = band(n, width)
        for i, j in places:
            support[i, j] = True
        yield support


@quick
@given(seed=seeds, norm=st.sampled_from(NORMS), entries=st.integers(0, 3))
def test_band_and_entries_by_brute_force(seed, norm, entries):
    a = normal(4, 4, seed=seed)
    least = min(float(distance(a, nearest_on_support(a, s, norm), norm)) for s in every_choice(4, 1, entries))
    found = nearest_band_and_entries(a, 1, entries, norm)
    assert float(distance(a, found, norm)) == pytest.approx(least, abs=1e-12)
    assert int((found[~band(4, 1)] != 0).sum()) <= entries


@quick
@given(
    seed=seeds,
    norm=st.sampled_from(NORMS),
    entries=st.integers(0, 3),
    kind=st.sampled_from(["normal", "rows"]),
    width=st.integers(0, 1),  # without a band a row may take several entries, and the later ones fill it up
)
def test_stochastic_entries_by_brute_force(seed, norm, entries, kind, width):
    a = normal(4, 4, seed=seed) if kind == "normal" else attention(4, 4, seed=seed) * (0.3 + seed % 3)
    supports = every_choice(4, width, entries)
    least = min(float(distance(a, nearest_on_support(a, s, norm, stochastic=True), norm)) for s in supports)
    found = nearest_band_and_entries(a, width, entries, norm, stochastic=True)
    assert float(distance(a, found, norm)) == pytest.approx(least, abs=1e-12)


def test_ties_make_two_nearest_matrices():
    a = torch.eye(3, dtype=torch.float64)
    a[0, 2] = a[2, 0] = 0.5
    found = nearest_band_and_entries(a, 1, 1)
    assert float(found[0, 2]) == 0.5  # the first in reading order
    assert float(found[2, 0]) == 0
    for norm in NORMS:
        assert float(distance(a, found, norm)) == float(distance(a, found.mT, norm)) == 0.5
        assert float(distance(found, found.mT, norm)) > 0.5


@quick
@given(seed=seeds, norm=st.sampled_from(NORMS), columns=st.integers(1, 4))
def test_stripes_by_brute_force(seed, norm, columns):
    a = normal(5, 5, seed=seed)
    least = min(
        float(distance(a, nearest_on_support(a, stripes(5, c), norm), norm)) for c in combinations(range(5), columns)
    )
    assert float(distance(a, nearest_stripes(a, columns, norm), norm)) == pytest.approx(least, abs=1e-12)
    p = attention(5, 5, seed=seed)
    least = min(
        float(distance(p, nearest_on_support(p, stripes(5, c), stochastic=True)))
        for c in combinations(range(5), columns)
    )
    assert float(distance(p, nearest_stripes(p, columns, stochastic=True))) == pytest.approx(least, abs=1e-12)


@quick
@given(seed=seeds, norm=st.sampled_from(NORMS), n=st.integers(1, 7))
def test_equal_rows(seed, norm, n):
    a = normal(n, n, seed=seed)
    best = nearest_equal_rows(a, norm)
    assert torch.equal(best, best[:1].expand(n, n))
    others = (best[:1] + 0.3 * normal(200, 1, n, seed=seed + 1)).expand(200, n, n)
    assert float(distance(a, best, norm)) <= float(distance(a.expand_as(others), others, norm).min()) + 1e-12


@quick
@given(seed=seeds, rank=st.integers(0, 6))
def test_low_rank_distance(seed, rank):
    a = normal(2, 6, 6, seed=seed)
    low = nearest_low_rank(a, rank)
    sigma = torch.linalg.svdvals(a)
    torch.testing.assert_close(
        distance(a, low, "frobenius"), sigma[:, rank:].square().sum(-1).sqrt(), rtol=0, atol=1e-12
    )
    assert int(torch.linalg.matrix_rank(low).max()) <= rank


def test_low_rank_tie():
    """Two equal singular values: keeping either is as near."""
    one, other = torch.diag(torch.tensor([1.0, 0.0])), torch.diag(torch.tensor([0.0, 1.0]))
    eye = torch.eye(2)
    assert float(distance(eye, one, "frobenius")) == float(distance(eye, other, "frobenius")) == 1
    assert float(distance(eye, nearest_low_rank(eye, 1), "frobenius")) == pytest.approx(1)


def test_what_cannot_be_projected():
    with pytest.raises(NumericsError, match="NaN or Inf"):
        nearest_band_and_entries(torch.full((3, 3), float("nan")), 1, 1)
    with pytest.raises(NumericsError, match="NaN or Inf"):
        nearest_low_rank(torch.full((3, 3), float("inf")), 1)
    with pytest.raises(UsageError, match="at least 0"):
        nearest_band_and_entries(torch.eye(3), 1, -1)
    with pytest.raises(UsageError, match="do not fill"):
        nearest_blocks(torch.eye(3), [2, 2])
    with pytest.raises(UsageError, match="l1 norm"):
        nearest_stripes(torch.eye(3), 1, "frobenius", stochastic=True)
    with pytest.raises(UsageError, match="width"):
        band(3, -1)
    with pytest.raises(UsageError, match="columns"):
        stripes(3, [3])
    with pytest.raises(UsageError, match="expected square matrices"):
        nearest_stripes(torch.ones(0, 0), 1)
    for make in (lambda: blocks([]), lambda: band(0, 1), lambda: nearest_stripes(torch.eye(3), 4)):
        with pytest.raises(UsageError):
            make()


# Mean sums of absolute differences over the eight maps that Conti saved: none kept, bands, bands and 16 entries.
PUBLISHED = {"zero": 16.27, (2, 0): 5.20, (3, 0): 3.65, (4, 0): 2.76, (2, 16): 1.45, (3, 16): 0.88, (4, 16): 0.55}


@pytest.mark.skipif(
    "HEADSCOPE_CONTI_DATA" not in os.environ, reason="HEADSCOPE_CONTI_DATA does not name the file of Conti's maps"
)
def test_distances_of_contis_maps():
    with np.load(Path(os.environ["HEADSCOPE_CONTI_DATA"])) as stored:
        maps = torch.stack([torch.from_numpy(stored[name]) for name in stored.files]).to(torch.float64)
    assert maps.shape == (8, 16, 16)
    assert float(distance(maps, torch.zeros_like(maps)).mean()) == pytest.approx(PUBLISHED["zero"], abs=0.005)
    found = {
        key: float(distance(maps, nearest_band_and_entries(maps, *key)).mean()) for key in PUBLISHED if key != "zero"
    }
    for key, value in found.items():
        assert value <= PUBLISHED[key] + 0.005, (key, value)


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("norm", NORMS)
def test_a_batch_is_its_matrices_one_by_one(norm, stochastic):
    a = 1.4 * attention(3, 6, 6, seed=5)  # rows that already hold more than 1, so that some entries gain nothing
    batch = nearest_band_and_entries(a, 1, 4, norm, stochastic=stochastic)
    for matrix, of_batch in zip(a, batch, strict=True):
        alone = nearest_band_and_entries(matrix, 1, 4, norm, stochastic=stochastic)
        assert torch.allclose(of_batch, alone, rtol=0, atol=1e-15)
