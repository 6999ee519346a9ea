"""Blocks of rows that the backward computes again instead of keeping them.

What is explicit in the pairs of queries and keys then never holds more than one block of them, with gradients too.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from headscope.attention.call import Call
from headscope.attention.sparse.blocks import row_blocks

Block = Callable[[Call], tuple[Tensor, ...]]
BLOCK_ENTRIES = 1 << 22


def by_rows(call: Call, block: Block, *, per_pair: int = 1) -> tuple[Tensor, ...]:
    """`block` of every run of rows with the keys in reach, joined along the rows.

    `per_pair` is how many numbers the block holds for each pair of one query and one key of one head.
    """
    pairs = call.q.shape[0] * call.q.shape[1] * max(1, call.k.shape[2]) * per_pair
    rows = max(1, BLOCK_ENTRIES // pairs)
    if call.left is not None or call.right is not None:
        rows = min(rows, 256)  # narrow blocks skip the keys beyond their band
    parts = [forgetful(block, call.take(*row_block)) for row_block in row_blocks(call, rows)]
    return tuple(torch.cat(column, dim=2) for column in zip(*parts, strict=True))


def forgetful(block: Block, call: Call) -> tuple[Tensor, ...]:
    """`block(call)`, whose backward runs the forward again."""
    if not torch.is_grad_enabled():
        return block(call)
    outputs: tuple[Tensor, ...] = checkpoint(block, call, use_reentrant=False, preserve_rng_state=False)
    return outputs
