"""Cells and rows of the tables that lenses write."""

from collections.abc import Mapping, Sequence
from math import isfinite

import polars as pl
from torch import Tensor

from headscope.core import HeadQuantity

Row = dict[str, object]


def number(value: Tensor | float) -> float | None:
    """A cell of a table: empty where the value is not finite."""
    cell = float(value)
    return cell if isfinite(cell) else None


def with_values(quantities: Sequence[HeadQuantity], tables: Mapping[str, pl.DataFrame]) -> tuple[HeadQuantity, ...]:
    """The quantities that some head has a value of; a short text leaves gaps."""
    return tuple(quantity for quantity in quantities if _values(quantity, tables[quantity.table]).count() > 0)


def _values(quantity: HeadQuantity, table: pl.DataFrame) -> pl.Series:
    rows = table.filter(*(pl.col(column) == value for column, value in quantity.where.items()))
    return rows[quantity.column]


def most_windows(rows: pl.DataFrame) -> int:
    """How many windows the row with the most of them rests on."""
    return max((int(count) for count in rows["windows"].to_list() if count is not None), default=0)
