"""One site: the kept tokens of its windows, those of equal length stacked, and which key counts for which query."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.core import Site
from headscope.lenses.shared.token_pairs import PairSample

# Keys that a row must have to be ranked, and how many other windows lend their queries.
KEYS, SHIFTS = 4, 4


@dataclass(frozen=True)
class Shown:
    """How much of a site was used: tokens per window, windows, and their length."""

    kept: int
    windows: int
    length: int


@dataclass(frozen=True)
class Sampled:
    """One site: the windows of the commonest length, stacked, and which keys count for which query."""

    site: Site
    length: int
    positions: Int[Tensor, "kept"]
    x: Float[Tensor, "windows kept d_model"]
    q: Float[Tensor, "windows heads kept d_head"]
    k: Float[Tensor, "windows heads kept d_head"]
    pattern: Float[Tensor, "windows heads kept kept"]
    inside: Bool[Tensor, "kept"]
    seen: Bool[Tensor, "kept kept"]
    counted: Bool[Tensor, "kept kept"]
    distance: Int[Tensor, "kept kept"]

    @classmethod
    def of(cls, sample: PairSample, site: Site, skip: int) -> "Sampled | None":
        """From the sample, without the first `skip` tokens; None where no row has enough keys."""
        shapes = [part.shape for part in sample.windows]
        shape = max(shapes, key=lambda candidate: (shapes.count(candidate), candidate), default=None)
        same = [part for part in sample.windows if part.shape == shape]
        if not same:
            return None
        length = same[0].length
        pattern = torch.stack([part.pattern for part in same])
        positions = same[0].positions
        inside = positions >= skip
        # A key that no head ever gave anything is masked: exactly 0, by causality or by the model's own window.
        visible = (pattern > 0).any(0).any(0) & inside & inside[:, None]
        counted = visible & ~torch.eye(len(positions), dtype=torch.bool)
        counted &= counted.sum(-1, keepdim=True) >= KEYS
        if not bool(counted.any()):
            return None
        shared = [site.kv_head(head) for head in range(site.n_heads)]
        return cls(
            site,
            length,
            positions,
            torch.stack([part.x for part in same]).to(torch.float64),
            torch.stack([part.q for part in same]).to(torch.float64),
            torch.stack([part.k for part in same]).to(torch.float64)[:, shared],
            pattern,
            inside,
            visible,
            counted,
            (positions[:, None] - positions).abs(),
        )

    @property
    def windows(self) -> int:
        """How many windows are stacked."""
        return len(self.x)

    @property
    def shifts(self) -> range:
        """By how many windows further on the query is taken for the null."""
        return range(1, min(SHIFTS, self.windows - 1) + 1)
