"""The figure of the experiment `repaint`: a map with one row."""

import numpy as np
import polars as pl

from headscope.core import Figure, HeatMap


def figures(table: pl.DataFrame) -> tuple[Figure, ...]:
    """The changes by strength."""
    labels = ("change",), tuple(f"{strength:g}" for strength in table["strength"])
    values = np.array([table["change"].to_list()])
    return (HeatMap("changes", "Change by strength", "Distance of the last states, relative.", values, *labels),)
