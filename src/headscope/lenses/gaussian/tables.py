"""The tables of the lens `gaussian`: their columns, and how a row is written."""

from collections.abc import Mapping, Sequence

import polars as pl

from headscope.core import Site
from headscope.lenses.shared.plots import place
from headscope.lenses.shared.table import Row, number

_PLACE = [("stack", pl.String), ("kind", pl.String), ("layer", pl.Int64), ("head", pl.Int64)]
_ESTIMATE = [(name, pl.Float64) for name in ("value", "low", "high", "null")]
_TEST = [(name, pl.Float64) for name in ("value", "null", "z", "p")]
_FURTHER = [(name, pl.Float64) for name in ("raw", "analytic")]
_COUNTS = [(name, pl.Int64) for name in ("dimensions", "samples", "windows")]
LAYERS = pl.Schema([*_PLACE, ("quantity", pl.String), *_ESTIMATE, *_COUNTS])
NORMALITY = pl.Schema([*_PLACE, ("component", pl.Int64), ("quantity", pl.String), *_TEST, *_COUNTS])
POSITIONS = pl.Schema(
    [*_PLACE, ("position", pl.Int64), ("until", pl.Int64), ("quantity", pl.String), *_ESTIMATE, *_COUNTS]
)
JOINT = pl.Schema([*_PLACE, ("quantity", pl.String), *_ESTIMATE, *_FURTHER, ("tokens", pl.Int64), *_COUNTS])
INFORMATION = pl.Schema([*_PLACE, ("distance", pl.Int64), *_ESTIMATE, *_FURTHER, *_COUNTS])
_SHARES = [(name, pl.Float64) for name in ("raw", "held")]
COMPONENTS = pl.Schema([*_PLACE, ("quantity", pl.String), ("distance", pl.Int64), *_ESTIMATE, *_SHARES, *_COUNTS])
SCHEMAS = {
    "layers": LAYERS,
    "positions": POSITIONS,
    "normality": NORMALITY,
    "components": COMPONENTS,
    "information": INFORMATION,
    "joint": JOINT,
}


def estimate_row(site: Site, quantity: str, numbers: Sequence[float], counts: Mapping[str, int]) -> Row:
    """Value, low, high and null of a quantity; what is not finite stays empty."""
    named = dict(zip(("value", "low", "high", "null"), map(number, numbers), strict=True))
    return {**place(site, None), "quantity": quantity, **named, **counts}
