"""The tables of the lens `alignment`, and names that its files share."""

import polars as pl

SCHEMA = pl.Schema(
    {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64, "quantity": pl.String}
    | dict.fromkeys(("value", "null", "sd", "z"), pl.Float64)
    | {"status": pl.String, "weights": pl.String}
)


Row = tuple[float | None, float | None, float | None, float | None]  # value, null, sd, z
