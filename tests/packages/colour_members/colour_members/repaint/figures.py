"""The figure of the experiment `repaint`: a map with one row."""

import numpy as np

from headscope.core import HeatMap


def figures(table):
    """The changes by strength."""
    labels = ("change",), tuple(f"{strength:g}" for strength in table["strength"])
    values = np.array([table["change"].to_list()])
    return (HeatMap("changes", "Change by strength", "Distance of the last states, relative.", values, *labels),)
