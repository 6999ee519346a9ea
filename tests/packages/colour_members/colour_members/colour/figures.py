"""The figure of the lens `colour`: a map of layers and heads."""

import numpy as np

from headscope.core import HeatMap


def figures(table):
    """Colours by layer and head."""
    layers, heads = table["layer"].n_unique(), table["head"].n_unique()
    values = np.full((layers, heads), np.nan)
    for row in table.iter_rows(named=True):
        values[row["layer"], row["head"]] = row["value"]
    labels = tuple(map(str, range(layers))), tuple(map(str, range(heads)))
    return (HeatMap("colour", "Colour of every head", "Mean mass on the token itself.", values, *labels),)
