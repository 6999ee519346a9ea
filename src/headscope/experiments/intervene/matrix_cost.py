"""What a projection costs: how many numbers it has, and how many flops it takes for a token; both are exact counts.

A product of a number and an input, added to a sum, counts as two flops. Biases and what follows the projection (norms,
rotations, the attention itself) are not counted.
"""

from dataclasses import dataclass

from jaxtyping import Bool
from torch import Tensor


@dataclass(frozen=True)
class MatrixCost:
    """Numbers that a matrix has, and flops that its product with one token takes."""

    numbers: int
    flops: int


def dense_cost(rows: int, columns: int) -> MatrixCost:
    """All entries."""
    return MatrixCost(rows * columns, 2 * rows * columns)


def factored_cost(rows: int, columns: int, rank: int) -> MatrixCost:
    """Two factors, rows × rank and rank × columns; the matrix itself where that is less.

    Properties:
        - two products of the factors  (tested: test_costs_are_counts)
    """
    numbers = min(rank * (rows + columns), rows * columns)
    return MatrixCost(numbers, 2 * numbers)


def entries_cost(stays: Bool[Tensor, "rows columns"]) -> MatrixCost:
    """The entries that stay, without their places, which a sparse format stores as well."""
    numbers = int(stays.sum())
    return MatrixCost(numbers, 2 * numbers)


def tied_cost(columns: int, terms: int) -> MatrixCost:
    """No number of its own: what the other matrix gives is used again, or the mean of several such results."""
    return MatrixCost(0, 0 if terms == 1 else terms * columns)
