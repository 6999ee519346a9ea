"""The tables of the lens `transport`: their columns, and how a cell is written."""

from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from headscope.core import HeadQuantity
from headscope.lenses.shared.table import with_values

_PLACE = [("stack", pl.String), ("kind", pl.String), ("layer", pl.Int64), ("head", pl.Int64)]
_NUMBERS = "value low high null floor measured predicted before weights sampling shape share share_low share_high held"
_COUNTS = [("dimensions", pl.Int64), ("samples", pl.Int64), ("windows", pl.Int64)]
_REST = [("quantity", pl.String), *((name, pl.Float64) for name in _NUMBERS.split()), *_COUNTS]
SCHEMAS = {
    "heads": pl.Schema([*_PLACE, *_REST]),
    "layers": pl.Schema([*_PLACE, ("stage", pl.String), *_REST]),
}
# Stages of a layer, in the order in which a token passes them.
STAGES = ("heads", "output", "skip", "norm", "layer")

_QUANTITIES = (
    HeadQuantity("covariance", "error of the predicted covariance", "heads", null="null"),
    HeadQuantity("entropy", "error of the predicted entropy", "heads", null="null", unit="nats", notable="both"),
    HeadQuantity(
        "information", "error of the predicted information", "heads", null="null", unit="nats", notable="both"
    ),
    HeadQuantity("vector", "error of single outputs", "heads", null="null"),
    HeadQuantity("mean", "error of the predicted mean", "heads", null="null"),
)
_SHARE = HeadQuantity(
    key="covariance_share",
    label="error due to weights that follow the text",
    table="heads",
    column="share",
    where={"quantity": "covariance"},
    unit="share",
)


def head_quantities(tables: Mapping[str, pl.DataFrame]) -> tuple[HeadQuantity, ...]:
    """The quantities of the table `heads` that a grid of heads can show."""
    errors = [replace(quantity, where={"quantity": quantity.key}) for quantity in _QUANTITIES]
    return with_values([*errors, _SHARE], tables)
