"""Laws and known answers of `headscope.maths.resampling.rank_correlation`."""

import numpy as np
import pytest
import torch
from scipy import stats

from headscope.maths.resampling.rank_correlation import RankSums, beyond_positions, row_centred, row_ranks


def rows(seed=0, shape=(3, 5, 9)):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def masks():
    mask = torch.rand(5, 9, generator=torch.Generator().manual_seed(1)) < 0.7
    mask[0] = True
    return mask


def test_row_ranks_equal_scipy():
    values, mask = rows().round(decimals=0), masks()
    found = row_ranks(values, mask)
    for batch, row in np.ndindex(3, 5):
        expected = stats.rankdata(values[batch, row][mask[row]].numpy())
        expected = (expected - expected.mean()) / expected.std()
        np.testing.assert_allclose(found[batch, row][mask[row]].numpy(), expected, atol=1e-12)
    assert not found[:, ~mask].any()
    assert not row_ranks(torch.ones(2, 4), torch.ones(4, dtype=torch.bool)).any()


def test_row_ranks_ignore_increasing_maps():
    values, mask = rows(), masks()
    assert torch.equal(row_ranks(values, mask), row_ranks(values.exp() * 3 + 1, mask))


def test_one_row_is_spearman():
    x, y = rows(1, (1, 30)), rows(2, (1, 30)).round(decimals=1)
    every = torch.ones(1, 30, dtype=torch.bool)
    sums = RankSums.of(row_ranks(x, every), row_ranks(y, every), torch.zeros(1, 30, dtype=torch.float64))
    assert float(sums.correlation) == pytest.approx(stats.spearmanr(x[0], y[0]).statistic)


def test_partial_is_the_correlation_of_residuals():
    every = torch.ones(4, 20, dtype=torch.bool)
    control = rows(3, (4, 20))
    a, m = (row_ranks(rows(seed, (4, 20)) + control, every) for seed in (4, 5))
    d = row_ranks(control, every)
    found = RankSums.of(a, m, d)
    left = [(x - (x * d).sum() / (d * d).sum() * d).flatten() for x in (a, m)]
    assert float(found.partial) == pytest.approx(float(torch.corrcoef(torch.stack(left))[0, 1]))
    assert abs(float(found.partial)) < float(found.correlation)


def test_no_partial_of_the_control():
    every = torch.ones(2, 12, dtype=torch.bool)
    a, d = (row_ranks(rows(seed, (2, 12)), every) for seed in (6, 7))
    assert RankSums.of(a, -d, d).partial.isnan()
    assert RankSums.of(a, torch.zeros_like(a), d).correlation.isnan()


def residuals(x, mask):
    """By the definition, entry by entry."""
    found = torch.zeros_like(x)
    for w, i, j in np.ndindex(*x.shape):
        if mask[i, j]:
            queries = mask[:, j]
            found[w, i, j] = x[w, i, j] - x[:, i, j].mean() - x[w, queries, j].mean() + x[:, queries, j].mean()
    return found


def test_beyond_positions_is_a_correlation_of_residuals():
    mask = masks()
    a, m = rows(8, (4, 5, 9)), rows(9, (4, 5, 9))
    left = [residuals(x + x[:, :1] * 3, mask)[:, mask].flatten() for x in (a, m)]
    found = beyond_positions(a + a[:, :1] * 3, m + m[:, :1] * 3, mask)
    assert float(found[0]) == pytest.approx(float(left[0] @ left[1] / (left[0].norm() * left[1].norm())))


def test_leaving_out_is_not_having():
    mask, a, m = masks(), rows(8, (5, 2, 5, 9)), rows(9, (5, 1, 5, 9))
    found = beyond_positions(a, m, mask)
    for out in range(5):
        kept = [w for w in range(5) if w != out]
        torch.testing.assert_close(found[1 + out], beyond_positions(a[kept], m[kept], mask)[0])


def test_nothing_is_beyond_positions_and_keys():
    mask, m = masks(), rows(9, (4, 5, 9))
    fixed = rows(1, (5, 9)).expand(4, 5, 9) + rows(2, (4, 1, 9)).expand(4, 5, 9)
    assert beyond_positions(fixed, m, mask).isnan().all()
    torch.testing.assert_close(beyond_positions(m + fixed, m, mask)[0], torch.tensor(1.0, dtype=torch.float64))
    assert beyond_positions(m[:1], m[:1], mask).isnan().all()


def test_one_centred_row_is_pearson():
    x, y = rows(1, (1, 30)), rows(2, (1, 30))
    mask = torch.arange(30)[None] < 25
    sums = RankSums.of(row_centred(x, mask), row_centred(y, mask), torch.zeros(1, 30, dtype=torch.float64))
    assert float(sums.correlation) == pytest.approx(stats.pearsonr(x[0, :25], y[0, :25]).statistic)
    assert float(sums.slope) == pytest.approx(stats.linregress(y[0, :25], x[0, :25]).slope)
