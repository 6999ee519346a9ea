"""The tables of the lens `maps`, and names that its files share."""

import polars as pl

SCHEMA = pl.Schema(
    {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64, "quantity": pl.String}
    | dict.fromkeys(("value", "low", "high", "null", "most"), pl.Float64)
    | {"windows": pl.Int64}
)


HEAD_QUANTITIES = ("apart", "shown", "written", "weight")
