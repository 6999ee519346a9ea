r"""Ragged lists of positions: the visible keys N(p) of each query position p.

They are kept in one row after the other, sorted and without doubles, so that a million of them is a million numbers.
As a plan for `attention.sparse.gathered` neighbouring queries whose lists are much alike share the union of their
keys under a small mask; a query with a list of its own is a block of one row. Blocks go together by the length of
their list, rounded up.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headscope.attention.sparse.gathered import Group
from headscope.errors import UsageError

SHARED_ROWS = 16


@dataclass(frozen=True, eq=False, repr=False)
class Lists:
    """A sorted list of positions for each position from 0 on.

    The list of p is `members[starts[p] : starts[p + 1]]`.
    """

    starts: Int[Tensor, " ends"]
    members: Int[Tensor, " total"]

    @classmethod
    def of(cls, lists: Iterable[Iterable[int]], whose: str) -> "Lists":
        """Lists from a sequence of sequences; errors name it by `whose`."""
        rows = [tuple(row) for row in lists]
        members = torch.tensor(list(chain.from_iterable(rows)) or [0])[: sum(map(len, rows))]
        if members.dtype != torch.long or bool((members < 0).any()):
            raise UsageError(f"{whose} must be lists of positions, which are whole numbers from 0 on")
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)
        owners = torch.repeat_interleave(torch.arange(len(rows)), lengths)
        return cls._of_pairs(owners, members, len(rows))

    @classmethod
    def of_mask(cls, mask: Bool[Tensor, "queries keys"]) -> "Lists":
        """Lists from a matrix that is True where a query may see a key."""
        owners, members = mask.nonzero(as_tuple=True)
        return cls._of_pairs(owners, members, mask.shape[0])

    @classmethod
    def _of_pairs(cls, owners: Tensor, members: Tensor, count: int) -> "Lists":
        width = int(members.max()) + 1 if len(members) else 1
        pairs = torch.unique(owners * width + members)
        counts = torch.bincount(pairs // width, minlength=count)
        return cls(torch.cat([counts.new_zeros(1), counts.cumsum(0)]), pairs % width)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __repr__(self) -> str:
        return f"<{len(self)} lists of {len(self.members)} positions>"

    def __getitem__(self, position: int) -> tuple[int, ...]:
        """The list of one position."""
        return tuple(self.members[self.starts[position] : self.starts[position + 1]].tolist())

    def pairs(self) -> tuple[Int[Tensor, " total"], Int[Tensor, " total"]]:
        """Owner and member of every entry, in order."""
        return torch.repeat_interleave(torch.arange(len(self)), self.starts.diff()), self.members

    def count(self, n: int) -> int:
        """The number of pairs among the first n positions."""
        return self._count(n, lambda ahead: torch.ones_like(ahead, dtype=torch.bool))

    def count_outside(self, n: int, left: int | None, right: int | None) -> int:
        """The number of pairs among the first n positions outside a band."""
        behind = n if left is None else left
        after = n if right is None else right
        return self._count(n, lambda ahead: (ahead > behind) | (ahead < -after))

    def _count(self, n: int, counts: Callable[[Tensor], Tensor]) -> int:
        owners, members = self.pairs()
        return int(((owners < n) & (members < n) & counts(owners - members)).sum())

    def hold(
        self, queries: Int[Tensor, "rows queries 1"], keys: Int[Tensor, "rows 1 keys"]
    ) -> Bool[Tensor, "rows queries keys"]:
        """True where a key position is in the list of a query position.

        Positions beyond the lists have none.
        """
        owners, members = (indices.to(keys.device) for indices in self.pairs())
        width = max(int(members.max()) if len(members) else 0, int(keys.max()) if keys.numel() else 0) + 1
        listed_pairs = torch.cat([owners * width + members, owners.new_tensor([-1])]).sort().values
        queried_pairs = queries * width + keys
        place = torch.searchsorted(listed_pairs, queried_pairs).clamp(max=len(listed_pairs) - 1)
        return (listed_pairs[place] == queried_pairs) & (queries >= 0) & (keys >= 0)

    def flex_terms(self, name: str) -> tuple[list[str], dict[str, Tensor]]:
        """`hold` as an expression for a `FlexMask`, and the table of pairs that it reads."""
        owners, members = self.pairs()
        # A last row and a last column hold nothing: positions beyond the lists are looked up there.
        rows, width = len(self) + 1, int(members.max()) + 2 if len(members) else 1
        table = torch.zeros(rows, width, dtype=torch.bool)
        table[owners, members] = True
        place = f"q.clamp(max={rows - 1}) * {width} + k.clamp(max={width - 1})"
        return [f"{name}[{place}]"], {name: table.flatten()}


def plan(owners: Int[Tensor, " pairs"], members: Int[Tensor, " pairs"]) -> list[Group]:
    """Groups of blocks that hold these pairs of query and key, and no other.

    The pairs are indices in order, none twice.
    """
    if not len(owners):
        return []
    width = int(members.max()) + 1
    blocks = owners // SHARED_ROWS
    union, union_index = torch.unique(blocks * width + members, return_inverse=True)
    count = int(blocks.max()) + 1
    pairs, shared = torch.bincount(blocks, minlength=count), torch.bincount(union // width, minlength=count)
    # A union that is not much shorter than the lists would gather as much and mask more.
    is_shared = 4 * shared <= 3 * pairs
    shared_groups = _shared(owners[is_shared[blocks]], union_index[is_shared[blocks]], union, is_shared, width)
    return shared_groups + _single(owners[~is_shared[blocks]], members[~is_shared[blocks]])


@lru_cache(maxsize=4)
def plan_of(
    lists: Lists, sizes: tuple[int, int], first: tuple[int, int], limits: tuple[int | None, int | None]
) -> Sequence[Group]:
    """The plan of lists for a call.

    `sizes`, `first` positions and `limits` are those of queries and keys.
    """
    owners, members = lists.pairs()
    ahead = owners - members
    queries, keys = owners - first[0], members - first[1]
    inside = (queries >= 0) & (queries < sizes[0]) & (keys >= 0) & (keys < sizes[1])
    left, right = limits
    inside = inside if left is None else inside & (ahead <= left)
    inside = inside if right is None else inside & (ahead >= -right)
    return tuple(plan(queries[inside], keys[inside]))


def _single(owners: Tensor, members: Tensor) -> list[Group]:
    """Blocks of one query, by the length of its list."""
    if not len(owners):
        return []
    queries, row, lengths = torch.unique_consecutive(owners, return_inverse=True, return_counts=True)
    slots = torch.arange(len(owners)) - (lengths.cumsum(0) - lengths)[row]
    groups = []
    for length, row_indices in _by_length(lengths):
        keys, allowed = _filled(row_indices, row, slots, members, length)
        full = None if bool(allowed.all()) else allowed[:, None]
        groups.append(Group(queries[row_indices][:, None], keys, full))
    return groups


def _shared(owners: Tensor, union_index: Tensor, union: Tensor, is_shared: Tensor, width: int) -> list[Group]:
    """Blocks of neighbouring queries over the union of their lists."""
    if not len(owners):
        return []
    in_shared_block = is_shared[union // width]
    numbers = in_shared_block.cumsum(0) - 1
    union, entries = union[in_shared_block], numbers[union_index]
    blocks, row, lengths = torch.unique_consecutive(union // width, return_inverse=True, return_counts=True)
    slots = torch.arange(len(union)) - (lengths.cumsum(0) - lengths)[row]
    last = int(owners.max())
    groups = []
    for length, block_indices in _by_length(lengths):
        keys, _ = _filled(block_indices, row, slots, union % width, length)
        place = torch.full((len(lengths),), -1).index_put((block_indices,), torch.arange(len(block_indices)))
        in_group = place[row[entries]] >= 0
        allowed = torch.zeros(len(block_indices), SHARED_ROWS, length, dtype=torch.bool)
        allowed[place[row[entries[in_group]]], owners[in_group] % SHARED_ROWS, slots[entries[in_group]]] = True
        queries = blocks[block_indices][:, None] * SHARED_ROWS + torch.arange(SHARED_ROWS)
        # The last block may reach over the end: it is a group of fewer rows.
        is_full_block = queries[:, -1] <= last
        groups.append(Group(queries[is_full_block], keys[is_full_block], allowed[is_full_block]))
        if not bool(is_full_block.all()):
            rows = last % SHARED_ROWS + 1
            groups.append(
                Group(queries[~is_full_block][:, :rows], keys[~is_full_block], allowed[~is_full_block][:, :rows])
            )
    return groups


def _by_length(lengths: Tensor) -> list[tuple[int, Tensor]]:
    """Groups of lists by rounded length: the length, and the indices of its lists.

    Lengths are rounded up to 1, 2, 3, 4, 6, 8, 12, 16, …, so that at most a third is wasted.
    """
    longest = int(lengths.max())
    steps = sorted({size for power in range(longest.bit_length() + 1) for size in (1 << power, 3 << power >> 1)})
    bounds = torch.tensor(steps)
    rounded = torch.searchsorted(bounds, lengths)
    return [(min(steps[at], longest), (rounded == at).nonzero()[:, 0]) for at in sorted(set(rounded.tolist()))]


def _filled(row_indices: Tensor, row: Tensor, slots: Tensor, members: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """The lists of these rows as a rectangle, and a mask of its filled places.

    Other places hold key 0.
    """
    place = torch.full((int(row.max()) + 1,), -1).index_put((row_indices,), torch.arange(len(row_indices)))
    in_group = place[row] >= 0
    keys = torch.zeros(len(row_indices), length, dtype=torch.long)
    filled = torch.zeros(len(row_indices), length, dtype=torch.bool)
    at = place[row[in_group]], slots[in_group]
    keys[at], filled[at] = members[in_group], True
    return keys, filled
