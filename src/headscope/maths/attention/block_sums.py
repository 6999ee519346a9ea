"""Sums of a map over blocks: attention between words instead of their sub-words."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def block_sums(
    matrix: Float[Tensor, "*batch rows columns"], row_block: Int[Tensor, " rows"], column_block: Int[Tensor, " columns"]
) -> Float[Tensor, "*batch row_blocks column_blocks"]:
    r"""Sum the entries of each pair of a row block and a column block.

    Blocks are numbered from 0; rows and columns of block −1 are left out.

    Definition:
        $B_{IJ} = \sum_{i \in I} \sum_{j \in J} A_{ij}$.
    Properties:
        - the total is kept where nothing is left out  (tested: test_block_sums_keep_the_mass)
        - a block's row of a stochastic matrix sums to its number of rows  (tested: test_block_sums_keep_the_mass)
        - blocks of blocks are blocks  (tested: test_blocks_of_blocks)
        - what lies above the diagonal stays 0 for blocks of neighbours  (tested: test_blocks_of_a_causal_map)
    Numerics:
        Sums in float64.
    Reference:
        Wertich, Exploring the Hidden Structures of Attention Layers in Transformer Models through the Lens of Gaussian
        Distributions, section 8.2 (token aggregation).
    """
    return _members(row_block).T @ matrix.to(torch.float64) @ _members(column_block)


def _members(block: Int[Tensor, " n"]) -> Float[Tensor, "n blocks"]:
    count = int(block.max()) + 1 if len(block) else 0
    return (block[:, None] == torch.arange(count)).to(torch.float64)
