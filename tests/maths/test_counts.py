"""Entropy of counts and its bias, the values that carry a share, and draws."""

from math import ceil, log

import pytest
import torch

from headscope.errors import NumericsError
from headscope.maths.counts import carriers, corrected_entropy, drawn, plain_entropy


@pytest.mark.parametrize("k", [1, 2, 7, 1000])
def test_entropy_of_equal_counts(k):
    assert plain_entropy(torch.full((k,), 3)) == pytest.approx(log(k), abs=1e-12)
    assert corrected_entropy(torch.full((k,), 3)) == pytest.approx(log(k) + (k - 1) / (6 * k), abs=1e-12)


def test_the_correction_pays():
    k, n, generator = 20, 100, torch.Generator().manual_seed(0)
    counts = [torch.bincount(torch.randint(k, (n,), generator=generator), minlength=k) for _ in range(400)]
    plain, better = (torch.tensor([f(c) for c in counts]).mean() for f in (plain_entropy, corrected_entropy))
    assert plain == pytest.approx(log(k) - (k - 1) / (2 * n), abs=0.01)
    assert better == pytest.approx(log(k), abs=0.01)


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
