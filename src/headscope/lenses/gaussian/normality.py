"""Whether a stream is Gaussian at all: skewness and kurtosis, of each principal component and of all together."""

from collections.abc import Iterator, Mapping, Sequence

import torch

from headscope.lenses.gaussian.stream import PER_DIMENSION, Layer
from headscope.lenses.shared.plots import place
from headscope.lenses.shared.table import Row, number
from headscope.maths.gaussians import normality

# Rows for tests of normality are at least so far apart: their correlation r then enters only as r³ and r⁴.
APART = 8


def normality_rows(layer: Layer) -> Iterator[Row]:
    """Tests of each principal component and of all together, on rows that count as independent."""
    chosen = torch.tensor(_apart(layer.window.tolist(), layer.position.tolist()), dtype=torch.int64)
    n = len(chosen)
    k = min(layer.components, layer.rank, n // PER_DIMENSION) if n >= normality.FEWEST else 0
    y = layer.scores(k)[chosen]
    counts = {"samples": n, "windows": layer.n_windows}
    if k:
        pairs = zip(normality.skewness(y), normality.excess_kurtosis(y), strict=True)
        for component, (skew, tails) in enumerate(pairs):
            yield _test_row(layer, component, "skewness", skew, {"dimensions": 1} | counts)
            yield _test_row(layer, component, "excess_kurtosis", tails, {"dimensions": 1} | counts)
        for quantity, test in (
            ("mardia_skewness", normality.mardia_skewness),
            ("mardia_kurtosis", normality.mardia_kurtosis),
        ):
            yield _test_row(layer, None, quantity, test(y), {"dimensions": k} | counts)


def _test_row(
    layer: Layer, component: int | None, quantity: str, test: normality.NormalityTest, counts: Mapping[str, int]
) -> Row:
    numbers = {"value": test.value, "null": test.expected, "z": test.z, "p": test.p}
    named = {name: number(value) for name, value in numbers.items()}
    return {**place(layer.site, None), "component": component, "quantity": quantity, **named, **counts}


def _apart(windows: Sequence[int], positions: Sequence[int]) -> list[int]:
    """Rows so far apart in their window that they count as independent: the first, then each one far enough on."""
    chosen: list[int] = []
    for index, (window, position) in enumerate(zip(windows, positions, strict=True)):
        last = chosen[-1] if chosen else None
        if last is None or windows[last] != window or position - positions[last] >= APART:
            chosen.append(index)
    return chosen
