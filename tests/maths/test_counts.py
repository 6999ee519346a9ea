"""Entropy of counts and its bias, the values that carry a share, and draws."""

from math import ceil, log

import pytest
import torch

from headscope.errors import NumericsError
from headscope.maths.resampling.counts import carriers, coverage_entropy, drawn


def shares_entropy(counts):
    p = counts[counts > 0].double() / counts.sum()
    return float(-(p * p.log()).sum())


@pytest.mark.parametrize("k", [1, 2, 7, 1000])
def test_entropy_of_equal_counts(k):
    assert coverage_entropy(torch.full((k,), 30)) == pytest.approx(log(k), abs=1e-12)
    assert coverage_entropy(torch.tensor([1])) == 0.0


def test_the_correction_pays():
    """100 draws from 1000 values with shares 1/v: the estimate misses less than half of what the shares do."""
    p = 1 / torch.arange(1, 1001, dtype=torch.float64)
    p = p / p.sum()
    truth, generator = float(-(p * p.log()).sum()), torch.Generator().manual_seed(0)
    draws = [torch.bincount(torch.multinomial(p, 100, True, generator=generator), minlength=1000) for _ in range(200)]
    plain, better = (torch.tensor([f(c) for c in draws]).mean() for f in (shares_entropy, coverage_entropy))
    assert plain < truth - 1.2
    assert abs(better - truth) < (truth - plain) / 2


def test_carriers():
    for n in (1, 9, 10, 11, 100):
        assert carriers(torch.ones(n, dtype=torch.int64)) == ceil(0.9 * n - 1e-9)
    assert carriers(torch.tensor([1, 0, 90, 9])) == 1
    assert carriers(torch.tensor([1, 0, 89, 10])) == 2
    assert carriers(torch.tensor([5, 5]), 1.0) == 2
    with pytest.raises(NumericsError, match="nothing was counted"):
        carriers(torch.zeros(3, dtype=torch.int64))
    with pytest.raises(NumericsError, match="between 0 and 1"):
        carriers(torch.ones(3, dtype=torch.int64), 0.0)


def test_draws_follow_the_counts():
    counts = torch.tensor([6, 0, 3, 1])
    found = drawn(torch.rand(100_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64), counts)
    shares = torch.bincount(found, minlength=4) / 100_000
    assert shares.tolist() == pytest.approx([0.6, 0.0, 0.3, 0.1], abs=0.01)
    assert shares[1] == 0
    assert drawn(torch.tensor([0.0, 0.5999, 0.6001, 0.95]), counts).tolist() == [0, 0, 2, 3]
