"""The tables of the lens `scores`: their columns, and how a cell is written."""

from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from headscope.core import HeadQuantity
from headscope.lenses.shared.table import with_values

_PLACE = [("stack", pl.String), ("kind", pl.String), ("layer", pl.Int64), ("head", pl.Int64)]
_COUNTS = [(name, pl.Int64) for name in ("rows", "samples", "dimensions", "windows")]
_VALUES = [(name, pl.Float64) for name in ("value", "low", "high", "predicted", "stated", "null")]
_LIMITS = [(name, pl.Float64) for name in ("value", "bound", "weights_bound", "stated", "beyond")]
_SHARES = [(name, pl.Float64) for name in ("value", "low", "high", "share", "share_low", "share_high", "null")]
HEADS = pl.Schema([*_PLACE, ("quantity", pl.String), *_VALUES, *_COUNTS])
BOUNDS = pl.Schema([*_PLACE, *_LIMITS, ("windows", pl.Int64)])
TERMS = pl.Schema([*_PLACE, ("quantity", pl.String), *_SHARES, ("samples", pl.Int64), ("windows", pl.Int64)])
SCHEMAS = {"heads": HEADS, "bounds": BOUNDS, "terms": TERMS}

_QUANTITIES = (
    HeadQuantity("row_variance", "variance of scores within a row", "heads", null="predicted", scale="log"),
    HeadQuantity("row_kurtosis", "excess kurtosis of scores in a row", "heads", null="predicted", notable="both"),
    HeadQuantity("rejected_share", "rows whose scores are not normal", "heads", null="null", unit="share"),
    HeadQuantity(
        "entropy_share", "entropy without the first token", "heads", null="predicted", unit="share", notable="both"
    ),
    HeadQuantity("freezing", "freezing number", "heads", null="predicted"),
    HeadQuantity("jacobian_trained", "response of weights to scores", "heads", null="null", notable="both"),
)


def head_quantities(tables: Mapping[str, pl.DataFrame]) -> tuple[HeadQuantity, ...]:
    """The quantities of the table `heads` that a grid of heads can show."""
    return with_values([replace(quantity, where={"quantity": quantity.key}) for quantity in _QUANTITIES], tables)
