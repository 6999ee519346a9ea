"""Tests of heads over windows: means without each window, adjusted p-values."""

from collections.abc import Sequence

import polars as pl
import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor

FALSE_DISCOVERIES = 0.05


def left_out(values: Float[Tensor, "windows *rest"]) -> Float[Tensor, "sets *rest"]:
    """The mean over all windows, then without each window; a single one is its own mean."""
    total, w = values.sum(0), len(values)
    return torch.cat((total[None] / w, (total - values) / (w - 1) if w > 1 else values))


def adjusted(table: pl.DataFrame, family: Sequence[str]) -> pl.DataFrame:
    """The table with p adjusted within each family (Benjamini and Hochberg)."""
    column: list[float | None] = [None] * table.height
    tested = table.with_row_index().filter(pl.col("p").is_not_null())
    for group in tested.partition_by(list(family), maintain_order=True):
        for index, p in zip(group["index"], stats.false_discovery_control(group["p"].to_numpy()), strict=True):
            column[index] = float(p)
    return table.with_columns(pl.Series("adjusted", column, dtype=pl.Float64))
