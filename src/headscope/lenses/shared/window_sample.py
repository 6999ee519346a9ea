"""A bounded sample of windows that merges exactly.

Windows are drawn by a hash of their tokens: the smallest hashes stay, so any split of the text ends with the same
sample, and every site with the same windows.
"""

import hashlib
from collections.abc import Sequence
from typing import Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor


@runtime_checkable
class HasPriority(Protocol):
    """What is kept of a window, with the hash of its tokens."""

    @property
    def priority(self) -> int:
        """The hash."""


T = TypeVar("T", bound=HasPriority)

# What the sample of a lens may take; 32 windows of a model with 30 layers of 576 dimensions fit whole.
SAMPLE_BYTES = 2**29


def priority_of(tokens: Int[Tensor, "n"]) -> int:
    """The hash of a window: 64 bits."""
    return int.from_bytes(hashlib.sha256(tokens.to(torch.int64).numpy().tobytes()).digest()[:8], "big")


def sample_warning(part: int, total: int, units: str) -> tuple[str, ...]:
    """The warning that a sample holds a part of the text only; none where it holds all of it."""
    if part >= total:
        return ()
    return (f"The lens holds {part:,} of {total:,} {units}, since memory is limited. Its intervals rest on these.",)


def drawn(windows: Sequence[T], room: int) -> tuple[T, ...]:
    """The `room` windows with the smallest hash, in text order."""
    # sorted is stable: of equal hashes the earlier window stays.
    smallest_hashes = sorted(range(len(windows)), key=lambda index: windows[index].priority)[:room]
    return tuple(windows[index] for index in sorted(smallest_hashes))
