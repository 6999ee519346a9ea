"""Laws and known answers of `headscope.maths.resampling.growth_laws`."""

import pytest
import torch
from scipy import optimize

from headscope.errors import NumericsError, UsageError
from headscope.maths.resampling.growth_laws import growth

N = torch.tensor([8.0, 16.0, 32.0, 64.0, 128.0, 256.0], dtype=torch.float64)


@pytest.mark.parametrize("power", [0.0, 0.3, 1.0, -0.5])
def test_a_power_is_found(power):
    found = growth(N, 3 * N**power)
    assert float(found.exponent) == pytest.approx(power, abs=1e-12)
    assert float(found.power_misfit) == pytest.approx(0.0, abs=1e-12)
    assert float(found.log_misfit) == pytest.approx(0.0, abs=1e-12) if power == 0 else float(found.log_misfit) > 0.005


def test_a_logarithm_is_no_power():
    found = growth(N, torch.stack((2 + 1.5 * N.log(), N.log())))
    assert found.log_misfit.max() < 1e-12
    assert found.power_misfit.min() > 0.005


def test_growth_ignores_a_factor():
    values = torch.rand(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1
    for factor in (7, 1e-100, 1e100):
        for a, b in zip(growth(N, values), growth(N, factor * values), strict=True):
            assert torch.allclose(a, b, rtol=1e-9)


def test_both_fits_have_the_least_misfit():
    """By a search that knows nothing of the fit; values far from either law, where logarithms would fit otherwise."""
    values = 1 + 9 * torch.rand(20, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    fitted = growth(N, values)
    for index, r in enumerate(values.numpy()):
        for law, misfit in (
            (lambda c, p: c * N.numpy() ** p, fitted.power_misfit[index]),
            (lambda a, b: a + b * N.log().numpy(), fitted.log_misfit[index]),
        ):

            def left_over(numbers, law=law, r=r):
                return law(*numbers) / r - 1

            best = min(
                float(optimize.least_squares(left_over, (size, slope), xtol=1e-14, ftol=1e-14, gtol=1e-14).cost)
                for size in (1.0, 5.0)
                for slope in (-0.5, 0.0, 0.5)
            )
            assert float(misfit) == pytest.approx((2 * best / len(r)) ** 0.5, rel=1e-6)


def test_what_cannot_be_fitted_is_an_error():
    with pytest.raises(UsageError, match="at least 3"):
        growth(N[:2], torch.ones(2))
    with pytest.raises(NumericsError, match="positive"):
        growth(N, torch.zeros(6))
