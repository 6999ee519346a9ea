"""What tokens tell of each other: mutual information by distance, and the joint Gaussian of neighbouring tokens."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import nan

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headscope.errors import NumericsError, UsageError
from headscope.lenses.gaussian.stream import PER_DIMENSION, Layer, jackknife_half_width
from headscope.lenses.gaussian.sums import Sums, left_out, stacked, summed
from headscope.lenses.shared.plots import place
from headscope.lenses.shared.table import Row, number
from headscope.maths.gaussians.gaussian import Gaussian
from headscope.maths.gaussians.information import entropy, mutual_information

# How often windows are paired with others for the null.
SHUFFLES = 16

# Rows of one tuple of tokens, one index for each offset; first tuples of one window, then shuffled ones.
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
    w, n_members = layer.n_windows, len(offsets)
    distinct_shifts = [
        shift for shift in range(1, w) if len({shift * member % w for member in range(n_members)}) == n_members
    ]
    return [_tuples(layer, places, offsets, shift) for shift in (0, *distinct_shifts[:SHUFFLES])]


def _tuples(layer: Layer, places: Int[Tensor, "windows positions"], offsets: Sequence[int], shift: int) -> Tuples:
    """The rows at i + offset, the second from the window `shift` further on, the third from 2·shift, and so on."""
    rows_by_offset = []
    for member, offset in enumerate(offsets):
        position = layer.position + offset
        window = (layer.window + member * shift) % layer.n_windows
        row = places[window, position.clamp_max(places.shape[1] - 1)]
        rows_by_offset.append(torch.where(position < places.shape[1], row, -1))
    complete = (torch.stack(rows_by_offset) >= 0).all(0).nonzero().squeeze(-1)
    return tuple(rows[complete] for rows in rows_by_offset)


def information_rows(layer: Layer, pairings: Pairings) -> Iterator[Row]:
    """Mutual information of two tokens at each distance."""
    most = max(len(groups[0][0]) for groups in pairings[0].values())
    k = min(layer.components, layer.rank, most // (2 * PER_DIMENSION))
    for distance, groups in pairings[0].items():
        for numbers in distance_row(layer, groups, k):
            counts = {"dimensions": k, "samples": len(groups[0][0]), "windows": layer.n_windows}
            yield {**place(layer.site, None), "distance": distance, **numbers, **counts}


def distance_row(layer: Layer, groups: Groups, k: int) -> Iterator[dict[str, float | None]]:
    """The information of two tokens at one distance in k components; nothing where pairs are too few."""
    estimates = _estimates(layer, groups, k, lambda g: mutual_information(g, range(k), range(k, 2 * k))[None])
    if estimates is not None:
        yield from _shared(estimates, (k * k,), len(groups[0][0]))


def joint_rows(layer: Layer, pairings: Pairings) -> Iterator[Row]:
    """The joint Gaussian of neighbouring tokens: its entropy, what they share, what the last has from those before."""
    groups = pairings[1]
    tokens, n = len(groups[0]), len(groups[0][0])
    k = min(layer.components, layer.rank, n // (tokens * PER_DIMENSION))

    def measures(joint: Gaussian) -> Float[Tensor, "quantities sets"]:
        joint_entropy = entropy(joint)
        single = [entropy(joint.marginal(range(i * k, (i + 1) * k))) for i in range(tokens)]
        last = mutual_information(joint, range((tokens - 1) * k), range((tokens - 1) * k, tokens * k))
        return torch.stack((joint_entropy, torch.stack(single).sum(0) - joint_entropy, last))

    estimates = _estimates(layer, groups, k, measures)
    freedom = (0, k * k * tokens * (tokens - 1) // 2, k * k * (tokens - 1))
    names = ("joint_entropy_nats", "total_correlation_nats", "last_token_nats")
    for name, numbers in () if estimates is None else zip(names, _shared(estimates, freedom, n), strict=True):
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
    rows = [
        y.index_select(0, torch.stack(group, 1).flatten()).reshape(len(group[0]), -1)
        for group in groups
        if len(group[0]) >= enough
    ]
    unshuffled = Sums.of(rows[0], layer.window[groups[0][0]], layer.n_windows).pooled(sets)
    try:
        quantities = measure(stacked([unshuffled, *map(summed, rows[1:])]).gaussian())
    except (NumericsError, UsageError):
        # In a text that repeats itself one token determines the other: the information is infinite.
        return None
    return quantities[:, : len(sets)], quantities[:, len(sets) :]


def _shared(measured: Estimates, freedom: Sequence[int], n: int) -> Iterator[dict[str, float | None]]:
    r"""Each quantity less what tokens of different windows give, with its interval.

    What shuffled windows give is the bias of the estimate, for rows as dependent as these, and what positions alone
    tell. Where a single window leaves nothing to shuffle, the bias of independent rows, f / 2n, is subtracted instead.
    An entropy (f = 0) is that of single tokens less the total correlation, which follows it in the list.

    Tokens that depend on each other can have less bias than shuffled ones, but no less than independent rows. The
    interval reaches up by the difference of the two, an entropy's down.
    """
    estimates, shuffled = measured
    analytic = [f / (2 * n) for f in freedom]
    chance = [float(values.mean()) if len(values) else bias for values, bias in zip(shuffled, analytic, strict=True)]
    for index, f in enumerate(freedom):
        raw, half = float(estimates[index, 0]), jackknife_half_width(estimates[index])
        term = index if f else index + 1
        value, slack = raw - chance[index] if f else raw + chance[term], max(chance[term] - analytic[term], 0.0)
        low, high = value - half - (0.0 if f else slack), value + half + (slack if f else 0.0)
        numbers = {"value": value, "low": low, "high": high, "raw": raw}
        numbers["null"] = float(shuffled[index].mean()) if len(shuffled[index]) else nan
        numbers["analytic"] = analytic[index] if f else nan
        yield {name: number(x) for name, x in numbers.items()}
