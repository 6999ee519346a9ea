"""Means of clusters and the distance of distributions."""

import math

import pytest
import torch
from scipy import stats

from headscope.errors import UsageError
from headscope.maths.resampling.clustered_mean import clustered_mean, total_variation


def test_equal_clusters_are_a_plain_sample():
    means = torch.tensor([1.0, 2.0, 4.0, 5.5], dtype=torch.float64)
    found = clustered_mean(means * 7, torch.full((4,), 7.0))
    low, high = stats.t.interval(0.95, 3, means.mean(), stats.sem(means.numpy()))
    assert found.mean == pytest.approx(float(means.mean()))
    assert (found.low, found.high) == pytest.approx((low, high))


def test_clustered_intervals_cover():
    """Members of a cluster are alike, clusters differ in size: still 95 of 100 intervals hold the truth."""
    generator = torch.Generator().manual_seed(0)
    trials, clusters = 400, 30
    hits = 0
    for _ in range(trials):
        counts = torch.randint(5, 40, (clusters,), generator=generator).double()
        level = torch.randn(clusters, generator=generator, dtype=torch.float64)
        noise = torch.randn(clusters, generator=generator, dtype=torch.float64) * counts.sqrt()
        found = clustered_mean(counts * level + noise, counts)
        hits += found.low <= 0 <= found.high
    assert 0.91 <= hits / trials <= 0.98


def test_few_unequal_clusters_cover():
    """Eight clusters of 10 to 300 members; with m − 1 degrees of freedom 89 of 100 intervals held the truth."""
    generator = torch.Generator().manual_seed(2)
    hits = 0
    for _ in range(400):
        counts = torch.randint(10, 300, (8,), generator=generator).double()
        level = torch.randn(8, generator=generator, dtype=torch.float64)
        found = clustered_mean(counts * level, counts)
        hits += found.low <= 0 <= found.high
    assert 0.93 <= hits / 400 <= 0.99


def test_few_clusters():
    alone = clustered_mean(torch.tensor([6.0, 0.0]), torch.tensor([3.0, 0.0]))
    assert alone.mean == 2.0
    assert math.isnan(alone.low)
    assert math.isnan(alone.high)
    with pytest.raises(UsageError, match="at least one member"):
        clustered_mean(torch.zeros(2), torch.zeros(2))


def test_total_variation():
    p, q, r = torch.rand(3, 50, 6, generator=torch.Generator().manual_seed(1)).softmax(-1)
    apart = total_variation(p, q)
    assert bool(((apart >= 0) & (apart <= 1)).all())
    assert bool((total_variation(p, r) <= apart + total_variation(q, r) + 1e-7).all())
    one, other = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    assert float(total_variation(one, other)) == 1.0
    assert float(total_variation(one, one)) == 0.0
