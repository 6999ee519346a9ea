"""Pairs of tokens that a lens keeps with everything about them: a bounded sample of windows that merges exactly.

Windows are drawn by a hash of their tokens: the smallest hashes stay, so any split of the text ends with the same
sample, and every site with the same windows. Of a window some tokens are kept, the same ones in every window of that
length, and of these the input vectors, queries, keys, and what each pays to each: all pairs among them.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.attention.maps import sampled_tokens

# What is kept of a site.
CAPTURES = ("resid", "q", "k", "pairs")


@dataclass(frozen=True)
class Part:
    """What is kept of one window; `length` counts all its tokens."""

    priority: int
    length: int
    positions: Int[Tensor, "kept"]
    x: Float[Tensor, "kept d_model"]
    q: Float[Tensor, "heads kept d_head"]
    k: Float[Tensor, "kv_heads kept d_head"]
    pattern: Float[Tensor, "heads kept kept"]

    @property
    def shape(self) -> tuple[int, tuple[int, ...]]:
        """Windows that can be compared have the same length, and the same tokens kept of it."""
        return self.length, tuple(self.positions.tolist())


@dataclass(frozen=True)
class PairSample:
    """The windows of one site that are kept so far, at most `room`, in the order of the text, out of `seen`."""

    room: int
    windows: tuple[Part, ...] = ()
    seen: int = 0
    _worst: int = field(default=2**64, compare=False)

    def add(
        self, tokens: Int[Tensor, "batch n"], real: Bool[Tensor, "batch n"], captured: Mapping[str, Tensor]
    ) -> "PairSample":
        """With the windows of one batch; of those that are not drawn nothing is copied."""
        found = self
        for index, (text, here) in enumerate(zip(tokens, real, strict=True)):
            priority = _hash(text[here])
            if len(found.windows) == found.room and priority >= found._worst:
                found = replace(found, seen=found.seen + 1)
            else:
                one = _part(priority, here, {name: captured[name][index] for name in CAPTURES})
                found = found._of((*found.windows, one), found.seen + 1)
        return found

    def merge(self, other: "PairSample") -> "PairSample":
        """The sample of both texts, this one's first."""
        return self._of((*self.windows, *other.windows), self.seen + other.seen)

    def _of(self, windows: tuple[Part, ...], seen: int) -> "PairSample":
        # sorted is stable: of equal hashes the earlier window stays.
        drawn = sorted(range(len(windows)), key=lambda index: windows[index].priority)[: self.room]
        chosen = tuple(windows[index] for index in sorted(drawn))
        return PairSample(self.room, chosen, seen, max((one.priority for one in chosen), default=2**64))


def _hash(tokens: Int[Tensor, "n"]) -> int:
    return int.from_bytes(hashlib.sha256(tokens.to(torch.int64).numpy().tobytes()).digest()[:8], "big")


def _part(priority: int, real: Bool[Tensor, "n"], captured: Mapping[str, Tensor]) -> Part:
    x, q, k, pattern = (captured[name] for name in CAPTURES)
    # A stream of other length than the text (a picture's) has no padding.
    real = real if len(x) == len(real) else torch.ones(len(x), dtype=torch.bool)
    at = torch.tensor(sampled_tokens(len(x)), dtype=torch.int64)
    inside = real[at]
    at = at[inside]
    positions = (real.cumsum(0) - 1)[at]
    return Part(priority, int(real.sum()), positions, x[at], q[:, at], k[:, at], pattern[:, inside][:, :, inside])
