"""What is read of a site in a window: rows of the pattern, and all values."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.attention.maps import query_run_rows
from headscope.core import Site
from headscope.lenses.lens import Batch
from headscope.lenses.shared.window_sample import priority_of

CAPTURES = ("query_runs", "v", "output_gram")


@dataclass(frozen=True)
class Stretch:
    """Rows `start` to `stop`: neighbouring queries, the first at `position`."""

    start: int
    stop: int
    position: int

    @property
    def last(self) -> int:
        """The position after the last of its queries."""
        return self.position + self.stop - self.start


@dataclass(frozen=True)
class Reading:
    """Rows of patterns with two visible keys or more, and values in the metric of W_O.

    `values` are V·L with L Lᵀ = W_O W_Oᵀ, so that lengths of mixed values are lengths of what heads write.
    """

    pattern: Float[Tensor, "heads rows keys"]
    values: Float[Tensor, "heads keys d_value"]
    visible: Bool[Tensor, "rows keys"]
    positions: Int[Tensor, " rows"]
    noise: Float[Tensor, "rows keys"]
    causal: bool

    @property
    def n(self) -> int:
        """The number of keys."""
        return self.pattern.shape[-1]

    @property
    def away(self) -> Int[Tensor, "rows keys"]:
        """Query position less key position."""
        return self.positions[:, None] - torch.arange(self.n)

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """The runs of neighbours among the queries."""
        breaks = ((self.positions.diff() != 1).nonzero()[:, 0] + 1).tolist()
        starts, stops = [0, *breaks], [*breaks, len(self.positions)]
        return tuple(
            Stretch(start, stop, int(self.positions[start])) for start, stop in zip(starts, stops, strict=True)
        )


def output_factors(gram: Float[Tensor, "heads d d"]) -> Float[Tensor, "heads d d"]:
    """L with L Lᵀ = G, from the eigenvalues of G in float64."""
    sizes, vectors = torch.linalg.eigh(gram.to(torch.float64))
    factors: Tensor = vectors * sizes.clamp_min(0.0).sqrt()[:, None, :]
    return factors


def reading_of(site: Site, batch: Batch, index: int, factors: Float[Tensor, "heads d d"]) -> Reading | None:
    """What one window of a batch shows; None where no row has two visible keys."""
    pattern, v = (batch.captures[name][site][index] for name in CAPTURES[:2])
    # A stream of other length than the text (a picture's) has no padding.
    real = batch.real[index]
    is_key = real if len(real) == pattern.shape[-1] else torch.ones(pattern.shape[-1], dtype=torch.bool)
    rows = torch.tensor(query_run_rows(len(is_key)), dtype=torch.int64)
    is_row = is_key[rows]
    positions = (is_key.cumsum(0) - 1)[rows[is_row]]
    pattern = pattern[:, is_row][:, :, is_key]
    visible = _visible(site, pattern, positions)
    counted = visible.sum(1) >= 2
    if not bool(counted.any()):
        return None
    pattern, visible, positions = pattern[:, counted], visible[counted], positions[counted]
    kv_heads = [site.kv_head(head) for head in range(site.n_heads)]
    values = torch.matmul(v[:, is_key][kv_heads], factors.to(v.dtype)).to(pattern.dtype)
    # Seeded by the text: the same permutation for all heads and sites, however the text is split.
    generator = torch.Generator().manual_seed(priority_of(batch.tokens[index][real]) >> 8)
    noise = torch.rand(visible.shape, generator=generator, dtype=torch.float64)
    return Reading(pattern, values, visible, positions, noise, site.causal)


def _visible(
    site: Site, pattern: Float[Tensor, "heads rows keys"], positions: Int[Tensor, " rows"]
) -> Bool[Tensor, "rows keys"]:
    """The keys that a query may see, by the site or else by their weights."""
    away = positions[:, None] - torch.arange(pattern.shape[-1])
    if not site.causal:
        return torch.ones_like(away, dtype=torch.bool) if site.window is None else (pattern > 0).any(0)
    return (away >= 0) if site.window is None else (away >= 0) & (away < site.window)
