"""What one pass over the keys gathers for every row; `rows` makes statistics of it."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

PerRow = Float[Tensor, "batch heads queries"]


@dataclass(frozen=True)
class Side:
    """The keys on one side of the query: their mass Σ e, and mean and variance of their positions under e."""

    mass: PerRow
    mean: PerRow  # anything where the mass is 0
    variance: PerRow


@dataclass(frozen=True)
class Sums:
    """Sums over the visible keys with e = exp(s − top), so relative to the row's largest score `top`."""

    top: PerRow
    mass: PerRow  # Σ e
    first: PerRow  # e of the first key of the sequence
    spread: PerRow  # Σ e (top − s)
    square: PerRow  # Σ e²
    near: dict[int, PerRow]  # Σ e over |i − j| ≤ w; w = 0 is the diagonal
    before: Side  # keys at or before the query
    after: Side | None  # keys after it; None when causal
    mixed: Float[Tensor, "batch heads queries d_value"] | None  # Σ e v, where it was asked for
