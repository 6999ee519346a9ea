"""The sums of one pass over the keys; `rows` makes statistics of them."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

PerRow = Float[Tensor, "batch heads queries"]


@dataclass(frozen=True)
class Side:
    """The keys on one side of the query: mass Σ e, mean and variance of position.

    The weights of both moments are e.
    """

    mass: PerRow
    mean: PerRow  # anything where the mass is 0
    variance: PerRow


@dataclass(frozen=True)
class Sums:
    """Sums over the visible keys with e = exp(s − top).

    They are relative to the row's largest score `top`.
    """

    top: PerRow
    mass: PerRow  # Σ e
    first: PerRow  # e of the first key of the sequence
    spread: PerRow  # Σ e (top − s)
    square: PerRow  # Σ e²
    near: dict[int, PerRow]  # Σ e over |i − j| ≤ w; w = 0 is the diagonal
    before: Side  # keys at or before the query
    after: Side | None  # keys after it; None when causal
    mixed: Float[Tensor, "batch heads queries d_value"] | None  # Σ e v, on request
