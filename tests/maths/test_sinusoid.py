"""Laws of `headscope.maths.geometry.sinusoid_fit`."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.errors import NumericsError, UsageError
from headscope.maths.geometry.sinusoid_fit import fit_sinusoid, sinusoid_residuals

T = torch.linspace(0, 1, 31, dtype=torch.float64)


@settings(max_examples=40, deadline=None)
@given(
    amplitude=st.floats(0.1, 10),
    phase=st.floats(-3, 3),
    offset=st.floats(-5, 5),
    frequency=st.sampled_from([0.7, math.pi / 2, 4.0]),
)
def test_a_sinusoid_is_found(amplitude, phase, offset, frequency):
    y = amplitude * torch.cos(frequency * T + phase) + offset
    found = fit_sinusoid(T, y, frequency)
    assert found.amplitude == pytest.approx(amplitude, rel=1e-9)
    assert found.phase == pytest.approx(phase, abs=1e-9)
    assert found.offset == pytest.approx(offset, abs=1e-9 * (amplitude + abs(offset)))
    assert found.residual < 1e-9
    torch.testing.assert_close(found.at(T), y, rtol=1e-9, atol=1e-9)


def test_a_parabola_is_no_sinusoid():
    assert fit_sinusoid(T, (T - 0.2).pow(3), math.pi / 2).residual > 1e-3
    assert fit_sinusoid(T, torch.full_like(T, 3.0), math.pi / 2).residual == 0.0


def test_unusable_input():
    with pytest.raises(UsageError, match="at least 4"):
        fit_sinusoid(T[:3], T[:3], 1.0)
    with pytest.raises(NumericsError, match="NaN"):
        fit_sinusoid(T, T * math.nan, 1.0)


def test_many_residuals_are_one_after_the_other():
    curves = torch.randn(5, 31, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    curves[4] = 2.0  # a constant has none
    frequencies = torch.tensor([0.3, 0.9, 1.5, 2.0, 1.0], dtype=torch.float64)
    found = sinusoid_residuals(T, curves, frequencies)
    each = [fit_sinusoid(T, one, float(f)).residual for one, f in zip(curves, frequencies, strict=True)]
    assert found.tolist() == pytest.approx(each, rel=1e-9)
