"""Laws of `headscope.maths.attention.block_sums`."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from headscope.maths.attention.block_sums import block_sums

SEEDS = st.integers(0, 10**6)
SIZES = st.integers(1, 12)


def stochastic(rows, columns, seed):
    scores = 5 * torch.randn(2, rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.softmax(scores, -1)


def neighbours(n, seed):
    """Numbers that never fall and skip none: words of a text."""
    begins = torch.rand(n, generator=torch.Generator().manual_seed(seed)) < 0.5
    begins[0] = False
    return begins.to(torch.int64).cumsum(0)


@given(SIZES, SIZES, SEEDS)
def test_block_sums_keep_the_mass(rows, columns, seed):
    matrix, down, across = stochastic(rows, columns, seed), neighbours(rows, seed), neighbours(columns, seed + 1)
    summed = block_sums(matrix, down, across)
    assert summed.shape == (2, int(down.max()) + 1, int(across.max()) + 1)
    torch.testing.assert_close(summed.sum((-1, -2)), matrix.sum((-1, -2)))
    torch.testing.assert_close(summed.sum(-1), torch.bincount(down).double().expand(2, -1))


def test_block_sums_by_hand():
    matrix = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]], dtype=torch.float64)
    summed = block_sums(matrix, torch.tensor([0, 0, 1]), torch.tensor([1, -1, 0]))
    assert summed.tolist() == [[9.0, 5.0], [9.0, 7.0]]


@given(SIZES, SEEDS)
def test_blocks_of_blocks(n, seed):
    matrix, fine = stochastic(n, n, seed), neighbours(n, seed)
    coarse = neighbours(int(fine.max()) + 1, seed + 1)
    once = block_sums(matrix, coarse[fine], coarse[fine])
    torch.testing.assert_close(block_sums(block_sums(matrix, fine, fine), coarse, coarse), once)


@given(SIZES, SEEDS)
def test_blocks_of_a_causal_map(n, seed):
    blocks = neighbours(n, seed)
    summed = block_sums(stochastic(n, n, seed).tril(), blocks, blocks)
    assert float(summed.triu(1).abs().max()) == 0.0
