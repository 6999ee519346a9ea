"""The table of all heads and quantities of a pair: differences, with intervals on hover and in the CSV."""

import numpy as np
from numpy.typing import NDArray

from headscope.comparison.comparison import Pair
from headscope.comparison.head_differences import HeadDifferences, QuantityDifference
from headscope.core.html_text import escape
from headscope.report.head_grid import Array
from headscope.report.table import table_element
from headscope.report.wide_table import WideColumn, WideTable


def difference_table(pair: Pair, heads: HeadDifferences, index: int) -> str:
    """The table of one pair, the heads that moved most first.

    Its first columns are the movement and the first quantity of each lens.
    """
    order = np.argsort(-heads.movement, kind="stable")
    first = [heads.of_lens(lens)[0] for lens in heads.lenses]
    ordered = [*first, *(part for part in heads.quantities if part not in first)]
    movement = WideColumn("movement", _cells(heads.movement[order]), meaning="mean over lenses of the largest effect")
    wide = WideTable(
        f"{pair.other_label} minus {pair.base_label}",
        tuple(heads.grid.heads[head].label for head in order),
        True,
        (movement, *(_column(part, order) for part in ordered)),
    )
    return f'<div data-pair="{index}">{table_element(wide, id_=f"differences-{index}")}</div>'


def display_factor(part: QuantityDifference) -> float:
    """Shares are shown in percent."""
    return 100.0 if part.quantity.unit == "share" else 1.0


def display_unit(part: QuantityDifference) -> str:
    """The unit of a difference: percentage points for shares."""
    return "points" if part.quantity.unit == "share" else part.quantity.unit


def _column(part: QuantityDifference, order: NDArray[np.int64]) -> WideColumn:
    factor = display_factor(part)
    has_ends = part.certainty == "interval"
    unit = display_unit(part)
    return WideColumn(
        f"{part.quantity.label}, {unit}" if unit else part.quantity.label,
        _cells(factor * part.beyond_rounding[order]),
        unit=unit,
        low=_cells(factor * part.low[order]) if has_ends else None,
        high=_cells(factor * part.high[order]) if has_ends else None,
        meaning=f"{part.lens}: {escape(part.question)}",
    )


def _cells(values: Array) -> tuple[float | None, ...]:
    return tuple(None if value != value else value for value in values.tolist())
