"""The table of the lens `colour`, and the number in it that every head has."""

import polars as pl

from headscope.core import HeadQuantity

SCHEMA = pl.Schema(
    {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64}
    | dict.fromkeys(("value", "low", "high", "uniform"), pl.Float64)
    | {"windows": pl.Int64}
)


def head_quantities() -> tuple[HeadQuantity, ...]:
    """The mass on the token itself, for grids of heads."""
    return (HeadQuantity("colour", "mass on the token itself", "heads", null="uniform", unit="share"),)
