"""What the fold of `transport` keeps of a site: sums of attention weights, and a bounded sample of windows.

The weights of every window are summed, those of even and of odd windows apart, so that either half of the text can be
predicted with the mean weights of the other. Single vectors are kept of some windows, drawn by a hash of their tokens:
any split of the text ends with the same sample, and every site with the same windows.
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
class Kept:
    """Windows of one shape: how many, the sums of their weights by half, and the sample in the order of the text."""

    room: int
    seen: int
    weights: Float[Tensor, "halves heads queries keys"]
    parts: tuple[Part, ...] = ()
    _worst: int = field(default=2**64, compare=False)

    @classmethod
    def empty(cls, room: int, pattern: Float[Tensor, "heads queries keys"]) -> "Kept":
        """Of no windows yet, for patterns of this shape."""
        return cls(room, 0, torch.zeros(2, *pattern.shape, dtype=torch.float64))

    def add(self, windows: Sequence[tuple[int, Mapping[str, Tensor]]]) -> "Kept":
        """With more windows, each with its hash; its vectors are copied only where it is drawn."""
        found = replace(self, weights=self.weights.clone())
        for priority, shown in windows:
            found.weights[found.seen % 2] += shown["early"]
            drawn = found.parts
            if len(drawn) < self.room or priority < found._worst:
                x, v, _, z = (shown[name].clone() for name in CAPTURES)
                drawn = (*drawn, Part(priority, found.seen, x, z, v))
            found = replace(found, seen=found.seen + 1)._of(drawn)
        return found

    def merge(self, other: "Kept") -> "Kept":
        """Of both texts, this one's first: what is even there is odd where this one ends with an odd number."""
        weights = self.weights + (other.weights.flip(0) if self.seen % 2 else other.weights)
        moved = tuple(replace(part, index=part.index + self.seen) for part in other.parts)
        return replace(self, seen=self.seen + other.seen, weights=weights)._of((*self.parts, *moved))

    def _of(self, parts: tuple[Part, ...]) -> "Kept":
        # sorted is stable: of equal hashes the earlier window stays.
        drawn = sorted(range(len(parts)), key=lambda index: parts[index].priority)[: self.room]
        chosen = tuple(parts[index] for index in sorted(drawn))
        return replace(self, parts=chosen, _worst=max((one.priority for one in chosen), default=2**64))


def windows_of(
    tokens: Int[Tensor, "batch n"], real: Bool[Tensor, "batch n"], captured: Mapping[str, Tensor]
) -> list[tuple[int, dict[str, Tensor]]]:
    """Each window of a batch without its padding: its hash, and what was captured of its first tokens."""
    found = []
    for index, (text, here) in enumerate(zip(tokens, real, strict=True)):
        x, v, early, z = (captured[name][index] for name in CAPTURES)
        # A stream of other length than the text (a picture's) has no padding.
        inside = here if len(x) == len(here) else torch.ones(len(x), dtype=torch.bool)
        queries, keys = inside[:CORNER], inside[: early.shape[-1]]
        shown = {
            "resid": x[:CORNER][queries],
            "v": v[:, : len(keys)][:, keys],
            "early": early[:, queries][:, :, keys],
            "corner_z": z[:, queries],
        }
        priority = int.from_bytes(hashlib.sha256(text[here].to(torch.int64).numpy().tobytes()).digest()[:8], "big")
        found.append((priority, shown))
    return found
