"""Laws of sinusoidal positions."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.errors import NumericsError, UsageError
from headscope.maths.attention.sinusoidal_positions import frequencies, nearest_pair, shift, similarity, sinusoidal

widths = st.sampled_from([2, 4, 6, 16, 64])
bases = st.sampled_from([1.0, 2.0, 100.0, 10_000.0])
offsets = st.floats(-500, 500)
quick = settings(max_examples=40, deadline=None)


def test_definition_written_out():
    t, d, base = 7.0, 6, 50.0
    expected = [g(t * base ** (-2 * k / d)) for k in range(3) for g in (math.sin, math.cos)]
    assert sinusoidal(torch.tensor(t), d, base).tolist() == pytest.approx(expected, rel=1e-14)


def test_many_positions_are_encoded_one_by_one():
    t = torch.tensor([[0.0, 1.5, 7.0], [2.0, 40.0, 3.0]])
    for row, column in ((0, 1), (1, 0), (1, 2)):
        assert torch.equal(sinusoidal(t, 8)[row, column], sinusoidal(t[row, column], 8))


def test_wavelengths():
    omega = frequencies(512)
    assert float(omega[0]) == 1
    assert 2 * math.pi / float(omega[-1]) == pytest.approx(2 * math.pi * 10_000 ** (510 / 512), rel=1e-12)


@quick
@given(t=offsets, d=widths, base=bases)
def test_all_positions_have_one_length(t, d, base):
    assert float(sinusoidal(torch.tensor(t), d, base).square().sum()) == pytest.approx(d / 2, rel=1e-12)


@quick
@given(t=offsets, s=offsets, d=widths, base=bases)
def test_shift_moves_positions(t, s, d, base):
    t, s = torch.tensor(t, dtype=torch.float64), float(s)
    moved = sinusoidal(t, d, base) @ shift(s, d, base)
    torch.testing.assert_close(moved, sinusoidal(t + s, d, base), rtol=0, atol=1e-11)


@quick
@given(r=offsets, s=offsets, d=widths, base=bases)
def test_shifts_are_a_group(r, s, d, base):
    product = shift(r, d, base) @ shift(s, d, base)
    torch.testing.assert_close(product, shift(r + s, d, base), rtol=0, atol=1e-11)
    eye = torch.eye(d, dtype=torch.float64)
    torch.testing.assert_close(shift(s, d, base) @ shift(s, d, base).mT, eye, rtol=0, atol=1e-14)


@quick
@given(s=st.integers(-300, 300), d=widths, base=bases)
def test_similarity_depends_on_the_offset(s, d, base):
    t = torch.tensor([0.0, 1.0, 17.0, 400.0], dtype=torch.float64)
    inner = (sinusoidal(t, d, base) * sinusoidal(t + s, d, base)).sum(-1)
    expected = similarity(torch.tensor(float(s)), d, base)
    torch.testing.assert_close(inner, expected.expand(4), rtol=0, atol=1e-10)
    assert float(similarity(torch.tensor(float(-s)), d, base)) == float(expected)


def test_similarity_is_a_distance():
    t = torch.arange(50, dtype=torch.float64)
    squared = (sinusoidal(t, 16) - sinusoidal(t[:1], 16)).square().sum(-1)
    torch.testing.assert_close(squared, 16 - 2 * similarity(t, 16), rtol=0, atol=1e-12)


@pytest.mark.parametrize("d", [2, 4, 64])
@pytest.mark.parametrize("base", [1.0, 3.0, 10_000.0])
def test_positions_differ(d, base):
    assert nearest_pair(5000, d, base)[1] > 1e-6


def test_near_collision():
    offset, gap = nearest_pair(1000, 2)
    assert offset == 710  # 710/113 is nearly 2π
    assert gap == pytest.approx(6.03e-5, rel=1e-3)


@pytest.mark.parametrize("d", [2, 4, 8])
def test_nearest_pair_by_brute_force(d):
    x = sinusoidal(torch.arange(80, dtype=torch.float64), d)
    gaps = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist") + 9 * torch.eye(80)
    assert nearest_pair(80, d)[1] == pytest.approx(float(gaps.min()), rel=1e-9)


def test_impossible_widths():
    for make in (
        lambda: frequencies(3),
        lambda: frequencies(0),
        lambda: frequencies(4, -1.0),
        lambda: nearest_pair(1, 4),
    ):
        with pytest.raises(UsageError):
            make()
    with pytest.raises(NumericsError):
        sinusoidal(torch.tensor(float("nan")), 4)
