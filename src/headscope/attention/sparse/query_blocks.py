r"""Blocks of query positions, each with the queries that choose keys for it.

A mechanism that chooses its keys from the input must not let a later token choose for an earlier one. So the choice
for a block of positions reads only the queries of the block before it, where the call limits what comes after a query
(`right`), and the queries of the block itself where it does not. A query whose own position is padding chooses nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headscope.attention.call import Call


@dataclass(frozen=True, eq=False)
class QueryBlock:
    """The queries of a block of positions, and those that choose for it, by index."""

    number: int
    queries: Int[Tensor, " queries"]
    choosers: Int[Tensor, " choosers"]  # in the order of their positions


def query_blocks(call: Call, size: int) -> list[QueryBlock]:
    """The blocks of `size` positions that hold queries of a call of one sequence.

    Properties:
        - no chooser comes after a query of its block  (tested: test_choosers_come_before_their_block)
    """
    positions = call.query_positions[0]
    numbers = positions.div(size, rounding_mode="floor")
    order = positions.argsort(stable=True)
    is_chooser = has_real_key(call)[0][order]
    sorted_numbers = numbers[order].contiguous()
    blocks = []
    for number in torch.unique_consecutive(sorted_numbers).tolist():
        source = number if call.right is None else number - 1
        choosers = order[_between(sorted_numbers, source)][is_chooser[_between(sorted_numbers, source)]]
        blocks.append(QueryBlock(number, order[_between(sorted_numbers, number)], choosers))
    return blocks


def missing_query(call: Call, size: int) -> str | None:
    """The reason why a call cannot choose: it lacks queries of an earlier block.

    It is None where every key of the block before a query's block comes with its query, as in a prefill, or where the
    call has no limit to what comes after a query.
    """
    if call.right is None or torch.equal(call.query_positions, call.key_positions):
        return None
    padding = call.key_padding
    rows = max(call.query_positions.shape[0], call.key_positions.shape[0], 1 if padding is None else padding.shape[0])
    for row in range(rows):
        queries, keys = (x[row if len(x) > 1 else 0] for x in (call.query_positions, call.key_positions))
        keys = keys if padding is None else keys[padding[row]]
        chooses_for = keys.div(size, rounding_mode="floor") + 1
        is_missing = torch.isin(chooses_for, queries.div(size, rounding_mode="floor")) & ~torch.isin(keys, queries)
        if bool(is_missing.any()):
            return (
                f"it chooses keys for a query by the {size} positions of the block before it, and the call has no "
                f"query at position {int(keys[is_missing][0])}"
            )
    return None


def sequences(call: Call) -> Iterator[Call]:
    """The call of each sequence of a batch, with positions of its own."""
    heads = slice(0, call.k.shape[1])
    return (call.part(slice(row, row + 1), heads) for row in range(call.q.shape[0]))


def has_real_key(call: Call) -> Bool[Tensor, "rows queries"]:
    """False for queries at whose position the key is padding."""
    if call.key_padding is None:
        return torch.ones_like(call.query_positions, dtype=torch.bool)
    padded = call.key_positions.expand_as(call.key_padding).masked_fill(call.key_padding, _NOWHERE)
    return (call.query_positions[:, :, None] != padded[:, None, :]).all(dim=-1)


_NOWHERE = -(1 << 40)  # a position that no query has


def _between(sorted_numbers: Tensor, number: int) -> slice:
    """The run of one number."""
    first, last = torch.searchsorted(sorted_numbers, sorted_numbers.new_tensor([number, number + 1])).tolist()
    return slice(first, last)
