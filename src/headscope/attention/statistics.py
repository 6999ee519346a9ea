"""Statistics of attention rows without storing the map (interface; the implementation follows)."""

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Request:
    """Which statistics to compute: bands are half-widths w of |i − j| ≤ w."""

    bands: tuple[int, ...] = ()

    def union(self, other: "Request") -> "Request":
        """What both ask for."""
        return Request(tuple(sorted({*self.bands, *other.bands})))


@dataclass(frozen=True)
class RowStatistics:
    """Per row (query) of the attention pattern; rows that see no key hold NaN."""

    entropy_nats: Float[Tensor, "batch heads queries"]
    participation: Float[Tensor, "batch heads queries"]  # Σ_j p_ij²
    distance: Float[Tensor, "batch heads queries"]  # Σ_j p_ij |i − j| / Σ_j p_ij
    distance_sd: Float[Tensor, "batch heads queries"]
    diagonal: Float[Tensor, "batch heads queries"]
    first: Float[Tensor, "batch heads queries"]
    bands: Mapping[int, Float[Tensor, "batch heads queries"]]
    n_visible: Int[Tensor, "batch heads queries"]
