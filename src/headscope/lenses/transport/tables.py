"""The tables of the lens `transport`: their columns, and how a cell is written."""

import polars as pl

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
