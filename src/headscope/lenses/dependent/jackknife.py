"""Intervals and tests from leaving out one window at a time, and p-values adjusted for the number of heads.

Windows and not pairs are left out, since the pairs of a window share tokens.
"""

from math import nan

import numpy as np
import polars as pl
import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor


def jackknife(
    estimates: Float[Tensor, "sets *batch"],
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """The first, and half of its 95 % interval."""
    w = len(estimates) - 1
    return estimates[0], _error(estimates) * (float(stats.t.ppf(0.975, w - 1)) if w > 1 else nan)


def p_value(estimates: Float[Tensor, "sets *batch"]) -> Float[Tensor, "*batch"]:
    """Two-sided: whether the first is 0."""
    w = len(estimates) - 1
    error = _error(estimates)
    t = torch.where(error > 0, estimates[0] / error, nan).abs()
    return torch.from_numpy(np.asarray(2 * stats.t.sf(t.numpy(), max(1, w - 1))))


def _error(estimates: Float[Tensor, "sets *batch"]) -> Float[Tensor, "*batch"]:
    """Standard error of the first by the jackknife: the others leave out one window each."""
    w = len(estimates) - 1
    rest = estimates[1:]
    if w < 2:
        return torch.full_like(estimates[0], nan)
    return ((w - 1) / w * (rest - rest.mean(0)).square().sum(0)).sqrt()


def adjusted(table: pl.DataFrame) -> pl.DataFrame:
    """With the p-values of each quantity adjusted for the number of heads."""
    column = np.full(table.height, nan)
    p = table["p"].cast(pl.Float64).fill_null(nan).to_numpy()
    for quantity in table["quantity"].unique(maintain_order=True).to_list():
        here = (table["quantity"] == quantity).to_numpy() & np.isfinite(p)
        if here.any():
            column[here] = stats.false_discovery_control(p[here])
    return table.with_columns(pl.Series("adjusted", column, dtype=pl.Float64).fill_nan(None))
