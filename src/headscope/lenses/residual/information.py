"""What tokens tell of each other: mutual information by distance, and the joint Gaussian of neighbouring tokens."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import nan, sqrt

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.errors import NumericsError, UsageError
from headscope.lenses.figures.layout import place
from headscope.lenses.residual.stream import PER_DIMENSION, Layer, jackknife
from headscope.lenses.residual.sums import Sums, left_out, stacked, summed
from headscope.lenses.residual.tables import Row, number
from headscope.maths.gaussian import Gaussian
from headscope.maths.information import entropy, mutual_information

# How often windows are paired with others for the null.
SHUFFLES = 16

# Rows that stand beside each other, one index for each offset; first those of one window, then shuffled ones.
Tuples = tuple[Tensor, ...]
Groups = Sequence[Tuples]
# By distance, and for the joint Gaussian of neighbours.
Pairings = tuple[Mapping[int, Groups], Groups]


def paired(layers: Sequence[Layer], distances: Sequence[int], tokens: int) -> Iterator[tuple[Layer, Pairings]]:
    """Each layer with its pairs of rows and its runs of neighbours; layers that keep the same rows share them."""
    last: Layer | None = None
    pairs: Pairings = ({}, ())
    for layer in layers:
        same = (
            last is not None and torch.equal(last.position, layer.position) and torch.equal(last.window, layer.window)
        )
        if not same:
            last, pairs = layer, _pairings(layer, distances, tokens)
        yield layer, pairs


def _pairings(layer: Layer, distances: Sequence[int], tokens: int) -> Pairings:
    places = torch.full((layer.n_windows, int(layer.position.max()) + 1), -1, dtype=torch.int64)
    places[layer.window, layer.position] = torch.arange(len(layer.position))
    by_distance = {distance: _groups(layer, places, (0, distance)) for distance in distances}
    return by_distance, _groups(layer, places, range(tokens))


def _groups(layer: Layer, places: Int[Tensor, "windows positions"], offsets: Sequence[int]) -> Groups:
    """Rows of one window at these offsets, then each of them from another window at the same position."""
    w, many = layer.n_windows, len(offsets)
    apart = [shift for shift in range(1, w) if len({shift * member % w for member in range(many)}) == many]
    return [_tuples(layer, places, offsets, shift) for shift in (0, *apart[:SHUFFLES])]


def _tuples(layer: Layer, places: Int[Tensor, "windows positions"], offsets: Sequence[int], shift: int) -> Tuples:
    """Which rows stand at i + offset, the second of the window `shift` further on, the third 2·shift, and so on."""
    found = []
    for member, offset in enumerate(offsets):
        position = layer.position + offset
        window = (layer.window + member * shift) % layer.n_windows
        row = places[window, position.clamp_max(places.shape[1] - 1)]
        found.append(torch.where(position < places.shape[1], row, -1))
    complete = (torch.stack(found) >= 0).all(0).nonzero().squeeze(-1)
    return tuple(rows[complete] for rows in found)


def information_rows(layer: Layer, pairings: Pairings) -> Iterator[Row]:
    """Mutual information of two tokens at each distance."""
    most = max(len(groups[0][0]) for groups in pairings[0].values())
    k = min(layer.components, layer.rank, most // (2 * PER_DIMENSION))
    for distance, groups in pairings[0].items():
        found = _estimates(layer, groups, k, lambda g: mutual_information(g, range(k), range(k, 2 * k))[None])
        for numbers in () if found is None else _shared(layer, found, (k * k,), len(groups[0][0])):
            counts = {"dimensions": k, "samples": len(groups[0][0]), "windows": layer.n_windows}
            yield {**place(layer.site, None), "distance": distance, **numbers, **counts}


def joint_rows(layer: Layer, pairings: Pairings) -> Iterator[Row]:
    """The joint Gaussian of neighbouring tokens: its entropy, what they share, what the last has from those before."""
    groups = pairings[1]
    tokens, n = len(groups[0]), len(groups[0][0])
    k = min(layer.components, layer.rank, n // (tokens * PER_DIMENSION))

    def measures(joint: Gaussian) -> Float[Tensor, "quantities sets"]:
        whole = entropy(joint)
        single = [entropy(joint.marginal(range(i * k, (i + 1) * k))) for i in range(tokens)]
        last = mutual_information(joint, range((tokens - 1) * k), range((tokens - 1) * k, tokens * k))
        return torch.stack((whole, torch.stack(single).sum(0) - whole, last))

    found = _estimates(layer, groups, k, measures)
    freedom = (0, k * k * tokens * (tokens - 1) // 2, k * k * (tokens - 1))
    names = ("joint_entropy_nats", "total_correlation_nats", "last_token_nats")
    for name, numbers in () if found is None else zip(names, _shared(layer, found, freedom, n), strict=True):
        counts = {"tokens": tokens, "dimensions": k, "samples": n, "windows": layer.n_windows}
        yield {**place(layer.site, None), "quantity": name, **numbers, **counts}


Measure = Callable[[Gaussian], Float[Tensor, "quantities sets"]]
Estimates = tuple[Float[Tensor, "quantities sets"], Float[Tensor, "quantities shifts"]]


def _estimates(layer: Layer, groups: Groups, k: int, measure: Measure) -> Estimates | None:
    """Of all windows and of all but each, and of the shuffled ones; None where there are too few rows for k."""
    enough = len(groups[0]) * PER_DIMENSION * k
    if not k or len(groups[0][0]) < enough:
        return None
    y, sets = layer.scores(k), left_out(layer.n_windows)
    rows = [torch.cat([y[member] for member in group], 1) for group in groups if len(group[0]) >= enough]
    own = Sums.of(rows[0], layer.window[groups[0][0]], layer.n_windows).pooled(sets)
    try:
        found = measure(stacked([own, *map(summed, rows[1:])]).gaussian())
    except (NumericsError, UsageError):
        # In a text that repeats itself one token determines the other: the information is infinite.
        return None
    return found[:, : len(sets)], found[:, len(sets) :]


def _shared(layer: Layer, found: Estimates, freedom: Sequence[int], n: int) -> Iterator[dict[str, float | None]]:
    r"""Each quantity with its bias taken off, its interval, and its distance from the shuffled one.

    The jackknife over windows knows the bias of dependent rows, which f / 2n does not; that one is taken where there is
    a single window. Shifts are few and share windows, so their spread alone may be too small by chance. For independent
    tokens 2nI follows a χ² with f degrees of freedom, k² for a pair: the larger of the two deviations is taken.
    """
    for estimates, shuffled, f in zip(*found, freedom, strict=True):
        raw, w = float(estimates[0]), len(estimates) - 1
        bias, half = f / (2 * n), jackknife(estimates, layer)
        value = w * raw - (w - 1) * float(estimates[1:].mean()) if w else raw - bias
        null = float(shuffled.mean()) if len(shuffled) else nan
        spread = float(shuffled.std()) if len(shuffled) > 1 else 0.0
        least = sqrt(2 * (f or max(freedom))) / (2 * n)
        numbers = {"value": value, "low": value - half, "high": value + half, "null": null, "raw": raw}
        numbers |= {"z": (raw - null) / max(spread, least), "analytic": bias if f else nan}
        yield {name: number(x) for name, x in numbers.items()}
