"""Whether a stream is Gaussian at all: skewness and kurtosis, of each principal component and of all together."""

from collections.abc import Iterator, Mapping, Sequence

import torch

from headscope.lenses.gaussian.stream import PER_DIMENSION, Layer
from headscope.lenses.shared.plots import place
from headscope.lenses.shared.table import Row, number
from headscope.maths.gaussians import normality

# Least distance in tokens of the rows tested for normality: their correlation r then enters only as r³ and r⁴.
ROW_SPACING = 8


def normality_rows(layer: Layer) -> Iterator[Row]:
    """Tests of each principal component and of all together, on rows that count as independent."""
    spaced_rows = torch.tensor(_spaced_rows(layer.window.tolist(), layer.position.tolist()), dtype=torch.int64)
    n = len(spaced_rows)
    k = min(layer.components, layer.rank, n // PER_DIMENSION) if n >= normality.FEWEST else 0
    y = layer.scores(k)[spaced_rows]
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


def _spaced_rows(windows: Sequence[int], positions: Sequence[int]) -> list[int]:
    """Rows that count as independent: of each window the first, then the next at least `ROW_SPACING` on."""
    spaced_rows: list[int] = []
    for index, (window, position) in enumerate(zip(windows, positions, strict=True)):
        last = spaced_rows[-1] if spaced_rows else None
        if last is None or windows[last] != window or position - positions[last] >= ROW_SPACING:
            spaced_rows.append(index)
    return spaced_rows
