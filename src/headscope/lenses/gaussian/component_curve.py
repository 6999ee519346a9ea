r"""Kurtosis and mutual information against the number of principal components in which they are measured.

Few components hold few of the directions of a stream: what is true in 8 of them need not be true in 128.
"""

from collections.abc import Iterator, Mapping, Sequence

from headscope.lenses.gaussian.information import Pairings, distance_row
from headscope.lenses.gaussian.stream import PER_DIMENSION, Layer
from headscope.lenses.shared.plots import place
from headscope.lenses.shared.table import Row, number
from headscope.maths.gaussians.normality import relative_kurtosis

# Numbers of components, as far as there are rows for; information is costly and takes the first of them only.
COMPONENTS = (4, 8, 16, 32, 64, 128)
INFORMATION_COMPONENTS = 32


def kurtosis_rows(layer: Layer) -> Iterator[Row]:
    """Mardia's kurtosis of the sampled rows over that of Gaussian rows, for several numbers of components."""
    n = len(layer.position)
    sizes = component_counts(layer, n // PER_DIMENSION)
    if not sizes or n < 2 * PER_DIMENSION:
        return
    scores = layer.projected(layer.parts, sizes[-1])
    for k, (excess, influence) in zip(sizes, relative_kurtosis(scores, sizes), strict=True):
        half = layer.sample_half_width(influence)
        cells = {"value": excess, "low": excess - half, "high": excess + half, "null": 0.0}
        yield _row(layer, "relative_kurtosis", cells, k, n)


def information_curve_rows(layer: Layer, pairings: Pairings) -> Iterator[Row]:
    """Mutual information at the smallest distance, for several numbers of components."""
    distance = min(pairings[0])
    n = len(pairings[0][distance][0][0])
    most = min(n // (2 * PER_DIMENSION), max(INFORMATION_COMPONENTS, layer.components))
    for k in component_counts(layer, most):
        for cells in distance_row(layer, pairings[0][distance], k):
            named = {name: cells[name] for name in ("value", "low", "high", "null", "raw")}
            yield _row(layer, "information_nats", named, k, n) | {"distance": distance}


def component_counts(layer: Layer, most: int) -> Sequence[int]:
    """The numbers of components up to `most`, that of the other tables among them."""
    limit = min(layer.rank, most)
    return sorted({k for k in (*COMPONENTS, min(layer.components, limit)) if 0 < k <= limit})


def _row(layer: Layer, quantity: str, cells: Mapping[str, float | None], k: int, samples: int) -> Row:
    variances = layer.spectrum[0]
    share = float(variances[:k].sum() / variances.sum())
    named = {name: None if value is None else number(value) for name, value in {**cells, "held": share}.items()}
    counts = {"dimensions": k, "samples": samples, "windows": layer.n_windows}
    return {**place(layer.site, None), "quantity": quantity, "distance": None, **named, **counts}
