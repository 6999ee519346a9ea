"""Cells and rows of the tables that lenses write."""

from math import isfinite

from torch import Tensor

Row = dict[str, object]


def number(value: Tensor | float) -> float | None:
    """A cell of a table: empty where the value is not finite."""
    cell = float(value)
    return cell if isfinite(cell) else None
