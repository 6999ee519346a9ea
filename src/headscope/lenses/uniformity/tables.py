"""The tables of the lens `uniformity`: their columns, and how a row is written."""

from math import isfinite, nan

import polars as pl
import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor

from headscope.core import Site
from headscope.lenses.shared.plots import place
from headscope.lenses.shared.table import Row

_PLACE = [("stack", pl.String), ("kind", pl.String), ("layer", pl.Int64), ("head", pl.Int64)]
_OF = [("variant", pl.String), ("quantity", pl.String)]
_ESTIMATE = [(name, pl.Float64) for name in ("value", "low", "high")]
_PREDICTIONS = [(name, pl.Float64) for name in ("predicted", "ratio", "ratio_low", "ratio_high")]
_CHANGE = [(name, pl.Float64) for name in ("change", "change_low", "change_high")]
_COUNTS = [(name, pl.Int64) for name in ("dimensions", "samples", "windows")]
SCHEMAS = {
    "streams": pl.Schema(
        [*_PLACE, *_OF, *_ESTIMATE, *_CHANGE, *((name, pl.Float64) for name in ("rounding", "null", "z")), *_COUNTS]
    ),
    "rates": pl.Schema([*_PLACE, *_OF, *_ESTIMATE, *_PREDICTIONS, ("windows", pl.Int64)]),
    "layers": pl.Schema([*_PLACE, ("quantity", pl.String), ("value", pl.Float64), ("null", pl.Float64)]),
}


def cell(value: float) -> float | None:
    """Empty where there is no number."""
    return value if isfinite(value) else None


def estimate(values: Float[Tensor, "windows *of"]) -> Float[Tensor, "3 *of"]:
    """Mean over windows and both ends of its 95 % interval (Student t)."""
    n = len(values)
    mean = values.mean(0)
    half = float(stats.t.ppf(0.975, n - 1)) * values.std(0) / n**0.5 if n > 1 else torch.full_like(mean, nan)
    return torch.stack((mean, mean - half, mean + half))


def named(site: Site, variant: str, quantity: str, numbers: Float[Tensor, "3"]) -> Row:
    """The first columns of a row: where, of what, and the estimate with its interval."""
    value, low, high = (cell(end) for end in numbers.tolist())
    return {**place(site, None), "variant": variant, "quantity": quantity, "value": value, "low": low, "high": high}
