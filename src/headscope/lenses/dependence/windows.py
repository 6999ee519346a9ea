"""The sampled tokens of one site: windows of equal length stacked, and the keys of each query."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.core import Site
from headscope.lenses.shared.token_pairs import PairSample

# Keys that a row must have to be ranked, and how many other windows lend their queries.
KEYS, SHIFTS = 4, 4


@dataclass(frozen=True)
class SampleSize:
    """How much of a site was used: tokens per window, windows, and their length."""

    tokens: int
    windows: int
    length: int


@dataclass(frozen=True)
class SiteSample:
    """The windows of one site that have the commonest length, stacked, and the keys of each query."""

    site: Site
    length: int
    positions: Int[Tensor, "kept"]
    x: Float[Tensor, "windows kept d_model"]
    q: Float[Tensor, "windows heads kept d_head"]
    k: Float[Tensor, "windows heads kept d_head"]
    pattern: Float[Tensor, "windows heads kept kept"]
    inside: Bool[Tensor, "kept"]
    visible: Bool[Tensor, "kept kept"]
    counted: Bool[Tensor, "kept kept"]
    distance: Int[Tensor, "kept kept"]

    @classmethod
    def of(cls, sample: PairSample, site: Site, skip: int) -> "SiteSample | None":
        """The stacked sample without the first `skip` tokens; None where no row has enough keys."""
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
        """The number of stacked windows."""
        return len(self.x)

    @property
    def shifts(self) -> range:
        """Shifts of the window that lends its query to the null."""
        return range(1, min(SHIFTS, self.windows - 1) + 1)
