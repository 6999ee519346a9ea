"""P-values of heads adjusted for their number; intervals and tests themselves are in `maths.resampling`."""

from math import nan

import numpy as np
import polars as pl
from scipy import stats

from headscope.maths.resampling.jackknife import jackknife
from headscope.maths.resampling.jackknife import jackknife_p as p_value

__all__ = ["adjusted", "jackknife", "p_value"]


def adjusted(table: pl.DataFrame) -> pl.DataFrame:
    """The table with the p-values of each quantity adjusted for the number of heads."""
    column = np.full(table.height, nan)
    p = table["p"].cast(pl.Float64).fill_null(nan).to_numpy()
    for quantity in table["quantity"].unique(maintain_order=True).to_list():
        rows = (table["quantity"] == quantity).to_numpy() & np.isfinite(p)
        if rows.any():
            column[rows] = stats.false_discovery_control(p[rows])
    return table.with_columns(pl.Series("adjusted", column, dtype=pl.Float64).fill_nan(None))
