"""The contract of a source of batches.

A batch is a function of its place, so that a training that was killed goes on with the batch that comes next, without
reading those before it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from headscope.training.objectives.objective import Batch


@dataclass(frozen=True)
class Place:
    """Where a training is in its data.

    `share` is the used part of the budget, from 0 to 1: a curriculum may depend on it.
    """

    epoch: int = 0
    position: int = 0
    share: float = 0.0


@runtime_checkable
class BatchSource(Protocol):
    """A deterministic sequence of batches."""

    def identity(self) -> Mapping[str, Any]:
        """What tells these data from others, as JSON.

        A training goes on with the same data only.
        """
        ...

    def batches_in(self, epoch: int) -> int:
        """How many batches an epoch has, at least one."""
        ...

    def batch(self, place: Place) -> Batch:
        """The batch at a place: the same one whenever it is asked for."""
        ...


def place_after(source: BatchSource, place: Place) -> Place:
    """The next place of a source.

    After the last batch of an epoch comes the first of the next one.
    """
    if place.position + 1 < source.batches_in(place.epoch):
        return Place(place.epoch, place.position + 1, place.share)
    return Place(place.epoch + 1, 0, place.share)
