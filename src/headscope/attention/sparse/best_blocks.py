r"""The key blocks with the largest pooled scores, for each head and each block of queries.

A block is pooled to the mean of its real queries or keys; the score of two blocks is the product of their means. Both
are taken in float64.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headscope.attention.call import Call
from headscope.attention.sparse.gathered import Gathered, Group
from headscope.attention.sparse.grouped_heads import grouped_products
from headscope.attention.sparse.query_blocks import QueryBlock, query_blocks
from headscope.attention.sparse.ranking import NONE, largest


@dataclass(frozen=True)
class BlockSizes:
    """Positions per block, how many blocks are chosen, and how many around the query's own are always seen."""

    block: int
    blocks: int
    near: int


@dataclass(frozen=True, eq=False)
class BestBlocks:
    """The numbers of the chosen key blocks of a block of queries; NONE where there are fewer."""

    queries: QueryBlock
    numbers: Int[Tensor, "heads blocks"]


@torch.no_grad()
def best_blocks(call: Call, sizes: BlockSizes) -> list[BestBlocks]:
    """The choice for every block of queries of a call of one sequence.

    Properties:
        - that of the definition, whatever shapes the call  (tested: test_what_it_has_seen_is_the_map_it_computes)
        - planted blocks are found  (tested: test_planted_blocks)
    """
    blocks = query_blocks(call, sizes.block)
    keys, numbers = _pooled_keys(call, sizes.block)
    nothing = torch.full((call.q.shape[1], sizes.blocks), NONE, device=call.q.device)
    choosing = [block for block in blocks if len(block.choosers)] if sizes.blocks and len(numbers) else []
    if not choosing:
        return [BestBlocks(block, nothing) for block in blocks]
    q = call.q.double()
    means = torch.stack([q[:, :, block.choosers].mean(dim=2) for block in choosing], dim=2)
    scores = grouped_products(means * call.scale, keys)[0]
    allowed = _candidates(torch.tensor([block.number for block in choosing], device=q.device), numbers, call, sizes)
    places = largest(scores.masked_fill_(~allowed, -torch.inf), sizes.blocks, above=-torch.inf)
    ranked = torch.where(places == NONE, NONE, numbers[places.clamp(min=0)]).sort(dim=-1).values
    by_number = {block.number: ranked[:, place] for place, block in enumerate(choosing)}
    return [BestBlocks(block, by_number.get(block.number, nothing)) for block in blocks]


def best_block_pairs(call: Call, sizes: BlockSizes) -> Bool[Tensor, "1 heads queries keys"]:
    """True for the pairs of the blocks that are always seen and of the chosen ones, of a call of one sequence."""
    numbers = call.key_positions[0].div(sizes.block, rounding_mode="floor")
    heads, n_queries = call.q.shape[1], call.q.shape[2]
    pairs = torch.zeros(1, heads, n_queries, len(numbers), dtype=torch.bool, device=numbers.device)
    for best in best_blocks(call, sizes):
        always = ((numbers - best.queries.number).abs() <= sizes.near) | (numbers == 0)
        allowed = always | (numbers[None, None] == best.numbers[:, :, None]).any(dim=1)
        pairs[0, :, best.queries.queries] = allowed[:, None]
    return pairs


def best_block_plans(call: Call, sizes: BlockSizes) -> list[list[Gathered]]:
    """For each head of a call of one sequence the plan of its blocks.

    The call is over positions from 0 on, causal or without limits, and nothing shapes it besides but padding.

    Properties:
        - it holds every pair once  (tested: test_block_plans_hold_every_pair_once)
    """
    best = best_blocks(call, sizes)
    return [
        [Gathered(_groups(call, best, sizes, head), call.scale, call.key_padding)] for head in range(call.q.shape[1])
    ]


def _pooled_keys(call: Call, size: int) -> tuple[Tensor, Int[Tensor, " blocks"]]:
    """The mean of the real keys of each block that has any, and the numbers of these blocks."""
    k, positions = call.k.double(), call.key_positions[0]
    if call.key_padding is not None:
        k, positions = k[:, :, call.key_padding[0]], positions[call.key_padding[0]]
    numbers, places, counts = torch.unique(
        positions.div(size, rounding_mode="floor"), return_inverse=True, return_counts=True
    )
    sums = k.new_zeros(*k.shape[:2], len(numbers), k.shape[3]).index_add_(2, places, k)
    return sums / counts[:, None], numbers


def _candidates(numbers: Tensor, key_numbers: Tensor, call: Call, sizes: BlockSizes) -> Bool[Tensor, "blocks others"]:
    """True for key blocks that may be chosen: they are not always seen, and the limits of the call reach them."""
    ahead = numbers[:, None] - key_numbers
    candidates = (ahead.abs() > sizes.near) & (key_numbers != 0)
    if call.right is not None:
        candidates &= ahead > 0
    if call.left is not None:
        # From the first query of the block to the last key of the other.
        candidates &= (ahead - 1) * sizes.block + 1 <= call.left
    return candidates


def _groups(call: Call, best: list[BestBlocks], sizes: BlockSizes, head: int) -> list[Group]:
    """The plan of a head; the own block comes last on a causal call."""
    n, size, device = call.k.shape[2], sizes.block, call.q.device
    stop = -(-n // size)
    by_shape: dict[tuple[int, int], list[tuple[int, tuple[int, ...]]]] = {}
    chosen_numbers = torch.stack([x.numbers[head] for x in best]).tolist()
    for x, numbers_of_head in zip(best, chosen_numbers, strict=True):
        number = x.queries.number
        last = number + 1 if call.causal else min(number + sizes.near + 1, stop)
        numbers = {0, *range(max(number - sizes.near, 0), last), *(other for other in numbers_of_head if other != NONE)}
        rows = len(x.queries.queries)
        run = sum(min(size, n - other * size) for other in numbers)
        by_shape.setdefault((rows, run), []).append((number, tuple(sorted(numbers))))
    groups = []
    for (rows, run), members in sorted(by_shape.items()):
        first = torch.tensor([number for number, _ in members], device=device)[:, None] * size
        key_blocks = torch.tensor([numbers for _, numbers in members], device=device)
        # Only the very last block may be short, and it comes last.
        keys = (key_blocks[..., None] * size + torch.arange(size, device=device)).flatten(1)[:, :run]
        own_triangle = torch.ones(1, rows, run, dtype=torch.bool, device=device).tril(run - rows)
        groups.append(Group(first + torch.arange(rows, device=device), keys, own_triangle if call.causal else None))
    return groups
