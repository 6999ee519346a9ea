"""What the fold of `transport` keeps of a site: sums of attention weights, and a bounded sample of windows.

The weights of every window are summed, even and odd windows separately, so that either half of the text can be
predicted with the mean weights of the other. Single vectors are kept of a sample of windows, drawn by a hash of
their tokens: any split of the text ends with the same sample, and every site with the same windows.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.shapes import CORNER

# What is kept of a site, and the most keys that its queries may see.
CAPTURES, KEYS = ("resid", "v", "early", "corner_z"), 512

Shape = tuple[int, int]


@dataclass(frozen=True)
class Part:
    """One window: the stream of its first tokens, their heads' outputs, and the values of all keys they may see."""

    priority: int
    index: int
    x: Float[Tensor, "queries d_model"]
    z: Float[Tensor, "heads queries d_value"]
    v: Float[Tensor, "kv_heads keys d_value"]


@dataclass(frozen=True)
class WindowSums:
    """Windows of one shape: how many, the sums of their weights by half, and the sample in the order of the text."""

    room: int
    count: int
    weights: Float[Tensor, "halves heads queries keys"]
    parts: tuple[Part, ...] = ()
    _worst: int = field(default=2**64, compare=False)

    @classmethod
    def empty(cls, room: int, pattern: Float[Tensor, "heads queries keys"]) -> "WindowSums":
        """Of no windows yet, for patterns of this shape."""
        return cls(room, 0, torch.zeros(2, *pattern.shape, dtype=torch.float64))

    def add(self, windows: Sequence[tuple[int, Mapping[str, Tensor]]]) -> "WindowSums":
        """With more windows, each with its hash; its vectors are copied only where the sample takes it."""
        sums = replace(self, weights=self.weights.clone())
        for priority, captured in windows:
            sums.weights[sums.count % 2] += captured["early"]
            parts = sums.parts
            if len(parts) < self.room or priority < sums._worst:
                x, v, _, z = (captured[name].clone() for name in CAPTURES)
                parts = (*parts, Part(priority, sums.count, x, z, v))
            sums = replace(sums, count=sums.count + 1)._of(parts)
        return sums

    def merge(self, other: "WindowSums") -> "WindowSums":
        """Of both texts, this one's first: what is even there is odd where this one ends with an odd number."""
        weights = self.weights + (other.weights.flip(0) if self.count % 2 else other.weights)
        moved = tuple(replace(part, index=part.index + self.count) for part in other.parts)
        return replace(self, count=self.count + other.count, weights=weights)._of((*self.parts, *moved))

    def _of(self, parts: tuple[Part, ...]) -> "WindowSums":
        # sorted is stable: of equal hashes the earlier window stays.
        first_by_hash = sorted(range(len(parts)), key=lambda index: parts[index].priority)[: self.room]
        sample = tuple(parts[index] for index in sorted(first_by_hash))
        return replace(self, parts=sample, _worst=max((part.priority for part in sample), default=2**64))


def windows_of(
    tokens: Int[Tensor, "batch n"], real: Bool[Tensor, "batch n"], captured: Mapping[str, Tensor]
) -> list[tuple[int, dict[str, Tensor]]]:
    """Each window of a batch without its padding: its hash, and what was captured of its first tokens."""
    hashed_windows = []
    for index, (text, is_token) in enumerate(zip(tokens, real, strict=True)):
        x, v, early, z = (captured[name][index] for name in CAPTURES)
        # A stream of other length than the text (a picture's) has no padding.
        inside = is_token if len(x) == len(is_token) else torch.ones(len(x), dtype=torch.bool)
        queries, keys = inside[:CORNER], inside[: early.shape[-1]]
        window = {
            "resid": x[:CORNER][queries],
            "v": v[:, : len(keys)][:, keys],
            "early": early[:, queries][:, :, keys],
            "corner_z": z[:, queries],
        }
        priority = int.from_bytes(hashlib.sha256(text[is_token].to(torch.int64).numpy().tobytes()).digest()[:8], "big")
        hashed_windows.append((priority, window))
    return hashed_windows
