"""The tables of the lens `focus`, and names that its files share."""

import polars as pl

SCHEMA = pl.Schema(
    {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64, "quantity": pl.String}
    | dict.fromkeys(("value", "low", "high", "uniform"), pl.Float64)
    | {"rows": pl.Int64, "windows": pl.Int64}
)
