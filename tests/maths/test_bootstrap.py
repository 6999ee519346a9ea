"""Laws of `headscope.maths.bootstrap`."""

import pytest
import torch

from headscope.errors import UsageError
from headscope.maths.bootstrap import bootstrap_interval


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_bootstrap_of_equal_members():
    low, high = bootstrap_interval(torch.full((7, 2), 3.0))
    assert low.tolist() == high.tolist() == [3.0, 3.0]
    values = normal(30, 4)
    low, high = bootstrap_interval(values)
    assert ((low < values.mean(0)) & (values.mean(0) < high)).all()


def test_bootstrap_covers():
    """Of 300 samples of 40 Gaussian members: 95 % within 4 standard errors, less the little that n = 40 costs."""
    samples = normal(40, 300, seed=1)
    low, high = bootstrap_interval(samples, draws=1000)
    covered = float(((low <= 0) & (high >= 0)).double().mean())
    assert abs(covered - 0.94) < 4 * (0.95 * 0.05 / 300) ** 0.5


def test_bootstrap_is_linear():
    """The same draws for every column: twice the column is twice the interval."""
    values = normal(20, 1)
    low, high = bootstrap_interval(torch.cat([values, 2 * values], dim=1))
    torch.testing.assert_close(low[1], 2 * low[0])
    torch.testing.assert_close(high[1], 2 * high[0])
    torch.testing.assert_close(bootstrap_interval(values)[0][0], low[0])


def test_nothing_to_draw_from():
    with pytest.raises(UsageError, match="at least one member"):
        bootstrap_interval(torch.zeros(0, 2))
