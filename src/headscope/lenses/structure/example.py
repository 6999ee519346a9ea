"""Rows of the first window that are kept to be drawn."""

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from headscope.lenses.structure.reading import Reading

# Queries that are drawn at most: the last ones of the window.
DRAWN = 32


@dataclass(frozen=True)
class Example:
    """The last queries of a window with all their keys, at one site."""

    pattern: Float[Tensor, "heads rows keys"]
    visible: Bool[Tensor, "rows keys"]
    positions: Int[Tensor, " rows"]


def example_of(reading: Reading) -> Example:
    """The last stretch of neighbouring queries."""
    stretch = reading.stretches[-1]
    rows = slice(max(stretch.start, stretch.stop - DRAWN), stretch.stop)
    return Example(reading.pattern[:, rows].clone(), reading.visible[rows].clone(), reading.positions[rows].clone())
