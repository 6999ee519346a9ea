"""The tables of the lens `spectra`, and names that its files share."""

import polars as pl

_PLACE = {"stack": pl.String, "kind": pl.String, "layer": pl.Int64, "head": pl.Int64, "matrix": pl.String}


_NUMBERS = {
    "quantity": pl.String,
    "value": pl.Float64,
    "null": pl.Float64,
    "initial": pl.Float64,
    "status": pl.String,
    "weights": pl.String,
}


SCHEMA = pl.Schema(_PLACE | _NUMBERS)


FEED_FORWARD_SCHEMA = pl.Schema(_PLACE | {"shape": pl.String} | _NUMBERS)
