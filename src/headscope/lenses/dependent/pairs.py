"""Pairs of tokens that a lens keeps with everything about them: a bounded sample of windows that merges exactly.

Windows are drawn by a hash of their tokens: the smallest hashes stay, so any split of the text ends with the same
sample. Of a window some tokens are kept, the same ones in every window of that length, and of these the input vectors,
queries, keys, and what each pays to each: all pairs among them.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.core import Site
from headscope.lenses.lens import Batch

# Tokens come in runs of so many; windows with no more than SHORT tokens are kept whole.
RUN, SHORT = 8, 56


@lru_cache(maxsize=256)
def kept_positions(length: int) -> tuple[int, ...]:
    """The last run of a window, runs that begin twice as far before its end each time, and the first run.

    So a token near the end has others at every distance before it, as many in each octave, and all lie in runs of
    neighbours.
    """
    if length <= SHORT:
        return tuple(range(length))
    starts, back = {0}, RUN
    while back <= length:
        starts.add(length - back)
        back *= 2
    return tuple(sorted({start + step for start in starts for step in range(RUN)}))


@dataclass(frozen=True)
class Part:
    """What is kept of one window at one site; `length` counts all its tokens."""

    length: int
    positions: Int[Tensor, "kept"]
    x: Float[Tensor, "kept d_model"]
    q: Float[Tensor, "heads kept d_head"]
    k: Float[Tensor, "kv_heads kept d_head"]
    pattern: Float[Tensor, "heads kept kept"]


@dataclass(frozen=True)
class Window:
    """One window of text: its hash, and what is kept of it at each site."""

    priority: int
    parts: Mapping[Site, Part]


@dataclass(frozen=True)
class PairSample:
    """The windows kept so far, at most `room`, in the order of the text, out of `seen`."""

    room: int
    windows: tuple[Window, ...] = ()
    seen: int = 0
    _worst: int = field(default=2**64, compare=False)

    def add(self, batch: Batch, sites: tuple[Site, ...]) -> "PairSample":
        """With the windows of one batch; of those that are not drawn nothing is copied."""
        found = self
        for index, tokens in enumerate(batch.tokens):
            real = batch.real[index]
            priority = _hash(tokens[real])
            if len(found.windows) == found.room and priority >= found._worst:
                found = replace(found, seen=found.seen + 1)
                continue
            parts = {site: _part(batch, site, index) for site in sites if _shown(batch, site)}
            found = found._of((*found.windows, Window(priority, parts)), found.seen + 1) if parts else found
        return found

    def merge(self, other: "PairSample") -> "PairSample":
        """The sample of both texts, this one's first."""
        return self._of((*self.windows, *other.windows), self.seen + other.seen)

    def _of(self, windows: tuple[Window, ...], seen: int) -> "PairSample":
        # sorted is stable: of equal hashes the earlier window stays.
        drawn = sorted(range(len(windows)), key=lambda index: windows[index].priority)[: self.room]
        chosen = tuple(windows[index] for index in sorted(drawn))
        return PairSample(self.room, chosen, seen, max((one.priority for one in chosen), default=2**64))


def _hash(tokens: Int[Tensor, "n"]) -> int:
    return int.from_bytes(hashlib.sha256(tokens.to(torch.int64).numpy().tobytes()).digest()[:8], "big")


def _shown(batch: Batch, site: Site) -> bool:
    return all(site in batch.captures.get(name, {}) for name in ("resid", "q", "k", "pattern"))


def _part(batch: Batch, site: Site, index: int) -> Part:
    x, q, k, pattern = (batch.captures[name][site] for name in ("resid", "q", "k", "pattern"))
    # A stream of other length than the text (a picture's) has no padding.
    own = x.shape[:2] == batch.real.shape
    real = batch.real[index].nonzero()[:, 0] if own else torch.arange(x.shape[1])
    positions = torch.tensor(kept_positions(len(real)), dtype=torch.int64)
    at = real[positions]
    return Part(len(real), positions, x[index][at], q[index][:, at], k[index][:, at], pattern[index][:, at][:, :, at])
