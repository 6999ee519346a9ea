"""Entropy of counts and its bias, the values that carry a share, and draws."""

from math import ceil, log

import pytest
import torch

from headscope.errors import NumericsError
from headscope.maths.resampling.counts import coverage_entropy, drawn
from headscope.maths.resampling.grouped_counts import GroupedCounts


def shares_entropy(counts):
    p = counts[counts > 0].double() / counts.sum()
    return float(-(p * p.log()).sum())


@pytest.mark.parametrize("k", [1, 2, 7, 1000])
def test_entropy_of_equal_counts(k):
    assert coverage_entropy(torch.full((k,), 30)) == pytest.approx(log(k), abs=1e-12)
    assert coverage_entropy(torch.tensor([1])) == 0.0


def test_nothing_has_no_entropy():
    with pytest.raises(NumericsError, match="nothing was counted"):
        coverage_entropy(torch.zeros(3, dtype=torch.int64))


def test_the_correction_pays():
    """100 draws from 1000 values with shares 1/v: the estimate misses less than half of what the shares do."""
    p = 1 / torch.arange(1, 1001, dtype=torch.float64)
    p = p / p.sum()
    truth, generator = float(-(p * p.log()).sum()), torch.Generator().manual_seed(0)
    draws = [torch.bincount(torch.multinomial(p, 100, True, generator=generator), minlength=1000) for _ in range(200)]
    plain, better = (torch.tensor([f(c) for c in draws]).mean() for f in (shares_entropy, coverage_entropy))
    assert plain < truth - 1.2
    assert abs(better - truth) < (truth - plain) / 2


def carriers(counts: torch.Tensor, share: float = 0.9) -> float:
    return float(GroupedCounts.of(torch.zeros_like(counts), counts, 1).carriers(share))


def test_carriers():
    for n in (1, 9, 10, 11, 100):
        assert carriers(torch.ones(n, dtype=torch.int64)) == ceil(0.9 * n - 1e-9)
    assert carriers(torch.tensor([1, 0, 90, 9])) == 1
    assert carriers(torch.tensor([1, 0, 89, 10])) == 2
    assert carriers(torch.tensor([5, 5]), 1.0) == 2
    assert carriers(torch.zeros(3, dtype=torch.int64)) == 0
    with pytest.raises(NumericsError, match="between 0 and 1"):
        carriers(torch.ones(3, dtype=torch.int64), 0.0)


def test_draws_follow_the_counts():
    counts = torch.tensor([6, 0, 3, 1])
    found = drawn(torch.rand(100_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64), counts)
    shares = torch.bincount(found, minlength=4) / 100_000
    assert shares.tolist() == pytest.approx([0.6, 0.0, 0.3, 0.1], abs=0.01)
    assert shares[1] == 0
    assert drawn(torch.tensor([0.0, 0.5999, 0.6001, 0.95]), counts).tolist() == [0, 0, 2, 3]


def test_groups_do_not_mix():
    """Each group has the numbers that its counts have by the formulas as written; the empty one has 0."""
    generator = torch.Generator().manual_seed(4)
    groups = [torch.randint(0, 9, (size,), generator=generator) for size in (1, 40, 7, 300)]
    groups.insert(2, torch.zeros(3, dtype=torch.int64))
    groups[0][0] = 1
    index = torch.cat([torch.full_like(counts, at) for at, counts in enumerate(groups)])
    order = torch.randperm(len(index), generator=generator)
    together = GroupedCounts.of(index[order], torch.cat(groups)[order], len(groups))
    for at, counts in enumerate(groups):
        falling = sorted((count for count in counts.tolist() if count), reverse=True)
        n, once = sum(falling), falling.count(1)
        if not n:
            assert float(together.coverage_entropy()[at]) == float(together.carriers(0.9)[at]) == 0.0
            assert together.carried((1, 5))[at].tolist() == [0.0, 0.0]
            continue
        shares = [count / n * (1 - min(once, n - 1) / n) for count in falling]
        by_hand = -sum(p * log(p) / (1 - (1 - p) ** n) for p in shares)
        assert float(together.coverage_entropy()[at]) == pytest.approx(by_hand, rel=1e-12)
        fewest = next(k for k in range(1, n + 1) if sum(falling[:k]) >= 0.9 * n - 1e-9)
        assert float(together.carriers(0.9)[at]) == fewest
        assert float(together.largest(5)[at]) == sum(falling[:5])
        assert float(together.totals[at]) == n
        assert together.carried((1, 5, 1000))[at].tolist() == pytest.approx(
            [sum(falling[:k]) / n for k in (1, 5, 1000)], rel=1e-12
        )
