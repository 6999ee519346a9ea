"""The families of structured maps keep the form that their names promise."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.errors import UsageError
from headscope.maths.linear_algebra.projections import distance, nearest_band
from headscope.maths.linear_algebra.structured_maps import (
    normalised,
    positional_head,
    rare_token_head,
    syntactic_head,
    with_sparse_error,
)
from headscope.maths.linear_algebra.supports import band


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@settings(max_examples=30, deadline=None)
@given(n=st.integers(2, 20), width=st.integers(1, 4), seed=st.integers(0, 1000))
def test_families_keep_their_form(n, width, seed):
    assert torch.equal(positional_head(n), torch.eye(n))
    syntactic = syntactic_head(n, width, 0.5, generator(seed))
    assert float(distance(syntactic, nearest_band(syntactic, width))) == 0
    rare = rare_token_head(n, min(width, n), 1, generator(seed))
    assert set(rare.flatten().tolist()) <= {0.0, 1.0}
    assert float(rare.sum(0).max()) >= min(width, n)
    for p in (syntactic, rare, with_sparse_error(syntactic, 3, 0.5, generator(seed))):
        assert p.sum(-1).tolist() == pytest.approx([1.0] * n)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 11])
def test_the_block_of_a_rare_token_lies_about_it(width):
    """The token is in the middle of its block, or the block is moved inwards at an end of the text."""
    n = 11
    for seed in range(40):
        token = int(torch.randperm(n, generator=generator(seed))[0])
        rare = rare_token_head(n, width, 1, generator(seed))
        rows = rare[:, token].nonzero()[:, 0].tolist()
        first = min(max(token - width // 2, 0), n - width)
        assert set(range(first, first + width)) | {token} == set(rows)
        middle = 0 < first < n - width
        assert not middle or token - rows[0] == width // 2


def test_widths_and_positions_at_their_limits():
    assert torch.equal(rare_token_head(4, 1, 0, generator()), positional_head(4))
    assert rare_token_head(4, 4, 4, generator()).sum() == 4
    assert torch.equal(syntactic_head(1, 1, 1.0, generator()), positional_head(1))
    assert torch.equal(with_sparse_error(positional_head(3), 0, 0.0, generator()), positional_head(3))


def test_dropped_share():
    p = syntactic_head(400, 3, 0.3, generator())
    beside = band(400, 3) & ~torch.eye(400, dtype=torch.bool)
    assert float((p[beside] == 0).double().mean()) == pytest.approx(0.3, abs=0.04)  # 4 standard errors of 2,388 draws
    assert bool((p.diagonal() > 0).all())


def test_sparse_error_is_sparse():
    p = with_sparse_error(positional_head(20), 7, 0.4, generator())
    assert 1 <= int((p[~torch.eye(20, dtype=torch.bool)] > 0).sum()) <= 7


def test_same_seed_same_map():
    assert torch.equal(syntactic_head(9, 2, 0.5, generator(4)), syntactic_head(9, 2, 0.5, generator(4)))


def test_impossible_families():
    for make in (
        lambda: positional_head(0),
        lambda: syntactic_head(4, 1, 1.5, generator()),
        lambda: rare_token_head(4, 5, 1, generator()),
        lambda: rare_token_head(4, 0, 1, generator()),
        lambda: rare_token_head(4, 1, 5, generator()),
        lambda: rare_token_head(4, 1, -1, generator()),
        lambda: syntactic_head(4, 1, -0.1, generator()),
        lambda: with_sparse_error(torch.eye(3), -1, 0.1, generator()),
        lambda: with_sparse_error(torch.eye(3), 1, -0.1, generator()),
        lambda: with_sparse_error(torch.eye(3), 10, 0.1, generator()),
        lambda: normalised(torch.zeros(2, 2)),
    ):
        with pytest.raises(UsageError):
            make()
