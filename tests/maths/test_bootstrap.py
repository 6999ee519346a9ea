"""Laws of `headscope.maths.resampling.bootstrap`."""

import pytest
import torch
from scipy import stats

from headscope.errors import UsageError
from headscope.maths.resampling.bootstrap import bootstrap_interval, bootstrap_of_sums


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_bootstrap_of_equal_members():
    low, high = bootstrap_interval(torch.full((7, 2), 3.0))
    assert low.tolist() == high.tolist() == [3.0, 3.0]
    values = normal(30, 4)
    low, high = bootstrap_interval(values)
    assert ((low < values.mean(0)) & (values.mean(0) < high)).all()


@pytest.mark.parametrize("members", [4, 12, 40])
def test_bootstrap_covers(members):
    """Of 600 samples of Gaussian members: 95 % within the binomial law; plain quantiles are red for 4 and 12."""
    samples = normal(members, 600, seed=members)
    low, high = bootstrap_interval(samples, draws=1000)
    least, most = (int(stats.binom.ppf(tail, 600, 0.95)) for tail in (0.0005, 0.9995))
    assert least <= int(((low <= 0) & (high >= 0)).sum()) <= most


def test_bootstrap_of_one_member():
    low, high = bootstrap_interval(torch.ones(1, 2))
    assert bool(low.isnan().all() and high.isnan().all())


def test_bootstrap_is_linear():
    """The same draws for every column: twice the column is twice the interval."""
    values = normal(20, 1)
    low, high = bootstrap_interval(torch.cat([values, 2 * values], dim=1))
    torch.testing.assert_close(low[1], 2 * low[0])
    torch.testing.assert_close(high[1], 2 * high[0])
    torch.testing.assert_close(bootstrap_interval(values)[0][0], low[0])


def test_bootstrap_of_sums_of_a_mean():
    """A mean as a function of sums: the same draws, the same interval."""
    values = normal(15, 1)
    low, high = bootstrap_interval(values, draws=300, seed=3)
    ends = bootstrap_of_sums(values, lambda sums: sums[:, 0] / 15, draws=300, seed=3)
    torch.testing.assert_close(torch.tensor(ends, dtype=torch.float64), torch.stack((low[0], high[0])))


def test_bootstrap_of_sums_covers_a_ratio():
    """Of 400 samples of forty members of two columns: the ratio of their means."""
    samples = 2 + normal(400, 40, 2, seed=5) * torch.tensor([1.0, 0.5], dtype=torch.float64)
    least, most = (int(stats.binom.ppf(tail, 400, 0.95)) for tail in (0.0005, 0.9995))
    ends = [bootstrap_of_sums(sample, lambda sums: sums[:, 0] / sums[:, 1], draws=500) for sample in samples]
    assert least <= sum(low <= 1 <= high for low, high in ends) <= most


def test_sums_of_nothing():
    low, high = bootstrap_of_sums(torch.ones(1, 1), lambda sums: sums[:, 0])
    assert torch.tensor([low, high]).isnan().all()
    with pytest.raises(UsageError, match="at least one member"):
        bootstrap_of_sums(torch.zeros(0, 1), lambda sums: sums[:, 0])


def test_nothing_to_draw_from():
    with pytest.raises(UsageError, match="at least one member"):
        bootstrap_interval(torch.zeros(0, 2))
