"""A bounded sample of windows with all pairs of some tokens; it merges exactly.

Windows are drawn by a hash of their tokens: the smallest hashes stay, so any split of the text ends with the same
sample, and every site with the same windows. Of a window some tokens are kept, the same ones in every window of that
length, and of these the input vectors, queries, keys, and what each pays to each: all pairs among them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.attention.maps import sampled_tokens
from headscope.lenses.shared.window_sample import drawn, priority_of

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
        """Length and sampled positions; windows with the same ones can be compared."""
        return self.length, tuple(self.positions.tolist())


@dataclass(frozen=True)
class PairSample:
    """At most `room` of the `seen` windows of one site, in text order."""

    room: int
    windows: tuple[Part, ...] = ()
    seen: int = 0
    _worst: int = field(default=2**64, compare=False)

    def add(
        self, tokens: Int[Tensor, "batch n"], real: Bool[Tensor, "batch n"], captured: Mapping[str, Tensor]
    ) -> "PairSample":
        """The sample after one more batch; only windows that stay are copied."""
        sample = self
        for index, (text, is_token) in enumerate(zip(tokens, real, strict=True)):
            priority = priority_of(text[is_token])
            if len(sample.windows) == sample.room and priority >= sample._worst:
                sample = replace(sample, seen=sample.seen + 1)
            else:
                part = part_of(priority, is_token, {name: captured[name][index] for name in CAPTURES})
                sample = sample._of((*sample.windows, part), sample.seen + 1)
        return sample

    def merge(self, other: "PairSample") -> "PairSample":
        """The sample of both texts, this one's first."""
        return self._of((*self.windows, *other.windows), self.seen + other.seen)

    def _of(self, windows: tuple[Part, ...], window_count: int) -> "PairSample":
        smallest = drawn(windows, self.room)
        return PairSample(
            self.room, smallest, window_count, max((window.priority for window in smallest), default=2**64)
        )


def part_of(priority: int, real: Bool[Tensor, "n"], captured: Mapping[str, Tensor]) -> Part:
    """The sampled tokens of one window, from its captures."""
    x, q, k, pattern = (captured[name] for name in CAPTURES)
    # A stream of other length than the text (a picture's) has no padding.
    real = real if len(x) == len(real) else torch.ones(len(x), dtype=torch.bool)
    at = torch.tensor(sampled_tokens(len(x)), dtype=torch.int64)
    inside = real[at]
    at = at[inside]
    positions = (real.cumsum(0) - 1)[at]
    return Part(priority, int(real.sum()), positions, x[at], q[:, at], k[:, at], pattern[:, inside][:, :, inside])
