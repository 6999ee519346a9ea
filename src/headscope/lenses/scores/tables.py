"""The tables of the lens `scores`: their columns, and how a cell is written."""

import polars as pl

_PLACE = [("stack", pl.String), ("kind", pl.String), ("layer", pl.Int64), ("head", pl.Int64)]
_COUNTS = [(name, pl.Int64) for name in ("rows", "samples", "dimensions", "windows")]
_VALUES = [(name, pl.Float64) for name in ("value", "low", "high", "predicted", "stated", "null")]
_LIMITS = [(name, pl.Float64) for name in ("value", "bound", "weights_bound", "stated", "beyond")]
_SHARES = [(name, pl.Float64) for name in ("value", "low", "high", "share", "share_low", "share_high", "null")]
HEADS = pl.Schema([*_PLACE, ("quantity", pl.String), *_VALUES, *_COUNTS])
BOUNDS = pl.Schema([*_PLACE, *_LIMITS, ("windows", pl.Int64)])
TERMS = pl.Schema([*_PLACE, ("quantity", pl.String), *_SHARES, ("samples", pl.Int64), ("windows", pl.Int64)])
SCHEMAS = {"heads": HEADS, "bounds": BOUNDS, "terms": TERMS}
