"""Numbers that the documents publish, and functions that read ours off a finding.

Wertich's are of Mistral-7B-Instruct-v0.2 (W_q counted as 1024 × 4096, as he does) and were read off his plots. Of a
model with several stacks, ours are those of its first one.
"""

from collections.abc import Callable
from math import isfinite
from statistics import pvariance
from typing import TYPE_CHECKING

from headscope.theory.index.item import Numbers, Published

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

    from headscope.core import Curves, Finding

PLOT = "Mistral-7B-Instruct-v0.2, read off the plot, ± 5 %"
_READ = 0.05
_ROWS, _COLUMNS, _SD = 1024, 4096, 0.02  # of the published matrices when they were initialised
_EDGES = tuple(_SD**2 * (_COLUMNS**0.5 + sign * _ROWS**0.5) ** 2 for sign in (-1, 1))  # Marchenko–Pastur
_MEAN = _COLUMNS * _SD**2


def of_layers(finding: "Finding", quantity: str, matrix: str = "") -> "pl.DataFrame":
    """The rows of one quantity in the table of layers, in the first stack, by layer."""
    import polars as pl  # takes longer to load than the names of all items

    table = finding.tables["layers"]
    if "matrix" in table.columns:
        table = table.filter(pl.col("matrix") == matrix)
    table = table.filter(pl.col("quantity") == quantity).drop_nulls("value").sort("layer")
    first = [pl.col(name) == pl.col(name).first() for name in ("stack", "kind")]
    return table.filter(*first)


def _at(quantity: str, matrix: str, row: int, power: int = 1) -> "Callable[[Finding], Numbers]":
    """One quantity of the first or last layer, and its value at initialisation."""

    def read(finding: "Finding") -> Numbers:
        table = of_layers(finding, quantity, matrix)
        if not table.height:
            return None, None
        value, initial = table[row, "value"], table[row, "initial"]
        return value**power, None if initial is None else initial**power

    return read


def _peak(quantity: str, matrix: str) -> "Callable[[Finding], Numbers]":
    def read(finding: "Finding") -> Numbers:
        table = of_layers(finding, quantity, matrix)
        row = table["value"].arg_max()
        return (None, None) if row is None else (table[row, "value"], table[row, "initial"])

    return read


def _traces(summary: Callable[[list[float]], float], of_null: bool = False) -> "Callable[[Finding], Numbers]":
    """A summary of the traces over the layers, and its null.

    The null of their variance is the mean of the variances by layer.
    """

    def read(finding: "Finding") -> Numbers:
        table = of_layers(finding, "trace")
        if not table.height:
            return None, None
        null = sum(sd**2 for sd in table["sd"]) / table.height if of_null else None
        return summary(table["value"].to_list()), null

    return read


INITIAL_SPECTRUM = (
    Published("smallest squared singular value of W_K", 0.42, _READ, _EDGES[0], _at("smallest", "K", 0, 2)),
    Published("largest squared singular value of W_K", 3.66, _READ, _EDGES[1], _at("largest", "K", 0, 2)),
)

TRAINED_SPECTRUM = (
    Published("mean squared singular value of W_Q, first layer", 0.071, _READ, _MEAN, _at("mean_square", "Q", 0)),
    Published("mean squared singular value of W_Q, last layer", 0.039, _READ, _MEAN, _at("mean_square", "Q", -1)),
    Published("mean squared singular value of W_K, first layer", 0.079, _READ, _MEAN, _at("mean_square", "K", 0)),
    Published("mean squared singular value of W_K, largest (layer 3)", 0.135, _READ, _MEAN, _peak("mean_square", "K")),
    Published("mean squared singular value of W_K, last layer", 0.044, _READ, _MEAN, _at("mean_square", "K", -1)),
    Published("mean squared singular value of W_V, first layer", 0.016, _READ, _MEAN, _at("mean_square", "V", 0)),
    Published("mean squared singular value of W_V, last layer", 0.092, _READ, _MEAN, _at("mean_square", "V", -1)),
    Published("largest squared singular value of W_Q, first layer", 60.3, _READ, _EDGES[1], _at("largest", "Q", 0, 2)),
    Published("largest squared singular value of W_K, first layer", 14.4, _READ, _EDGES[1], _at("largest", "K", 0, 2)),
    Published("largest squared singular value of W_V, first layer", 0.2, _READ, _EDGES[1], _at("largest", "V", 0, 2)),
)

# The thesis takes the traces for those of unrelated matrices, of variance 1.
TRACES = (
    Published("smallest trace of a layer", -3.43, _READ, None, _traces(min)),
    Published("largest trace of a layer", 1.78, _READ, None, _traces(max)),
    Published("variance of the traces over the layers", 0.90, _READ, 1.0, _traces(pvariance, of_null=True)),
)

# From the eight attention matrices (16 tokens) that lie in the repository; the second pair is what they are measured
# against: no structure at all, and the best band.
BAND_DISTANCES = (
    Published("mean L1 distance of the fitted form, w = 3, num-pos = 2", 17.98),
    Published("mean L1 distance of the fitted form, w = 10, num-pos = 1", 21.23),
    Published("mean L1 distance of the zero matrix", 16.27),
    Published("mean L1 distance of the exact band, w = 3", 3.65),
)
BAND_READ = "computed from the eight 16 × 16 attention matrices of the repository"

_DEPTHS = {
    "W_Q": ((0.0, 1.0), (0.071, 0.039)),
    "W_K": ((0.0, 3 / 31, 1.0), (0.079, 0.135, 0.044)),
    "W_V": ((0.0, 1.0), (0.016, 0.092)),
}


def trained_spectrum_comparison(finding: "Finding") -> "Curves":
    """Mean squared singular values over the depth, ours and the published ones."""
    import numpy as np

    from headscope.core import Curves, Series

    series = []
    for name, (x, y) in _DEPTHS.items():
        table = of_layers(finding, "mean_square", name[-1])
        series.append(Series(f"{name} here", _depth(table), table["value"].to_numpy().astype(np.float64)))
        series.append(Series(f"{name} published", np.array(x), np.array(y), role="theory"))
    return Curves(
        "beside_published",
        "Mean squared singular value over the depth, beside the published ones",
        "Solid: this model. Dashed: the published values of the first and the last layer (of W_K also the largest), "
        f"joined by straight lines ({PLOT}).",
        "share of the depth",
        "mean σ²",
        tuple(curve for curve in series if len(curve.x)),
        log_y=True,
    )


def traces_comparison(finding: "Finding") -> "Curves":
    """The traces over the depth, with the smallest and largest published ones."""
    import numpy as np

    from headscope.core import Curves, Series

    table = of_layers(finding, "trace")
    ends = np.array([0.0, 1.0])
    x, sd = _depth(table), table["sd"].to_numpy().astype(np.float64)
    series = [Series("here", x, table["value"].to_numpy().astype(np.float64))]
    series.append(Series("here, turned at random, ± 2 sd", x, np.zeros_like(x), -2 * sd, 2 * sd, role="null"))
    for name, value in (("smallest published", -3.43), ("largest published", 1.78)):
        series.append(Series(name, ends, np.full(2, value), role="theory"))
    return Curves(
        "beside_published",
        "Base alignment over the depth, beside the published range",
        "Solid: the traces of W_QK of this model, summed over the heads of a layer. Dotted, with its band: the same "
        "with one side turned at random. Dashed: the smallest and the largest published trace "
        f"({PLOT}; there query head h stands beside key head h, which is wrong under grouped queries).",
        "share of the depth",
        "Tr(W_Q W_Kᵀ)",
        tuple(curve for curve in series if len(curve.x)),
    )


def _depth(table: "pl.DataFrame") -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Layers as a share of the depth: a common axis of models of any depth."""
    layers = table["layer"].to_numpy().astype("float64")
    last = layers.max(initial=0.0)
    return layers / last if last > 0 and isfinite(last) else layers
