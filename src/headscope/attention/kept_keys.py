"""The positions of the keys that mechanisms still read: what a cache keeps for them.

A cache is trimmed at some position, its base: of the keys before it those stay that a query from there on may read.
Keys that come later are all there until the next trimming. So what a cache holds follows from its readers, its base
and its length, and layers with the same readers share the answer.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Int
from torch import Tensor

from headscope.attention.call import Call
from headscope.attention.mechanism import Mechanism

Readers = frozenset[Mechanism]  # the mechanisms that read some keys; empty where all keys stay
EVERYTHING: Readers = frozenset()
_REMEMBERED = 256  # answers: a step of generation asks for a few per set of readers


@dataclass(frozen=True)
class StoredKeys:
    """The positions of stored keys, and which of their runs stay when they are trimmed."""

    positions: Int[Tensor, " stored"]
    first: int | None  # the first position, where there are no gaps

    def __len__(self) -> int:
        return len(self.positions)


def readers_of(mechanisms: tuple[Mechanism | None, ...]) -> Readers:
    """The readers of keys that heads attend to through these mechanisms; None is the model's own attention.

    A mechanism that may read any key, now or later, makes all of them stay.
    """
    readers = set()
    for mechanism in mechanisms:
        if mechanism is None or mechanism.still_read(torch.zeros(1, dtype=torch.long), _FAR) is None:
            return EVERYTHING
        readers.add(mechanism)
    return frozenset(readers)


_FAR = 2**40  # a position after every one that a mechanism names


@lru_cache(maxsize=_REMEMBERED)
def stored_keys(readers: Readers, base: int, length: int) -> StoredKeys:
    """What a cache of `length` tokens holds that was trimmed at `base`."""
    positions = _candidates(readers, base, length)
    for_all = torch.ones(len(positions), dtype=torch.bool)
    is_kept = positions >= base if readers else for_all
    for mechanism in readers:
        read = mechanism.still_read(positions, base)
        is_kept = is_kept | (for_all if read is None else read)
    positions = positions[is_kept]
    has_gaps = len(positions) > 0 and int(positions[-1] - positions[0]) != len(positions) - 1
    stored = StoredKeys(positions, None if has_gaps or not len(positions) else int(positions[0]))
    _newest[readers] = base, length, stored
    return stored


# What was stored last for each set of readers: a step of generation then looks at no more keys than are stored.
_newest: dict[Readers, tuple[int, int, StoredKeys]] = {}


def _candidates(readers: Readers, base: int, length: int) -> Int[Tensor, " positions"]:
    """Positions that may be stored, in order: what is dropped once stays dropped."""
    earlier_base, earlier_length, earlier = _newest.get(readers, (length, length, None))
    if len(_newest) > _REMEMBERED:
        _newest.clear()
    if earlier is None or earlier_base > base or earlier_length > length:
        return torch.arange(length)
    return torch.cat([earlier.positions, torch.arange(earlier_length, length)])


@lru_cache(maxsize=_REMEMBERED)
def staying_runs(readers: Readers, base: int, new_base: int, length: int) -> tuple[tuple[int, int], ...]:
    """The runs of stored keys, as begin and end by index, that stay when the cache is trimmed at a new base."""
    stored = stored_keys(readers, base, length).positions
    if not readers:
        return ((0, len(stored)),)
    stays = torch.isin(stored, stored_keys(readers, new_base, length).positions).int()
    edges = torch.diff(stays, prepend=stays.new_zeros(1), append=stays.new_zeros(1))
    return tuple(zip((edges == 1).nonzero()[:, 0].tolist(), (edges == -1).nonzero()[:, 0].tolist(), strict=True))


@lru_cache(maxsize=_REMEMBERED)
def reads_all_stored(readers: Readers, base: int, length: int) -> bool:
    """Whether one mechanism reads the keys, and a query at the last position all that are stored."""
    if len(readers) != 1:
        return False
    positions = stored_keys(readers, base, length).positions[None]
    nothing = torch.zeros(1, 1, positions.shape[1], 1)
    call = Call(nothing[:, :, :1], nothing, nothing, 1.0, torch.tensor([[length - 1]]), positions, right=0)
    masked = next(iter(readers)).seen(call)
    return masked is not None and bool(masked.visible().all())
